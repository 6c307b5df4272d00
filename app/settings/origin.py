"""Origins of web pages as people write them, brought into the form in which a browser sends them."""

from __future__ import annotations

import re
from ipaddress import IPv6Address

ALLOWED = "http://host[:port] and https://host[:port], without a path, `*` or `null`"
_FORM = re.compile(r"(https?)://(?:([a-z0-9_][a-z0-9._-]*)|\[([0-9a-f:.]+)\])(?::([0-9]{1,5}))?", re.ASCII)
_DEFAULT_PORTS = {"http": 80, "https": 443}


def origins(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Each once, in lower case and without a default port. Raises ValueError that names the one that is none."""
    return tuple(dict.fromkeys(_origin(text) for text in texts))


def _origin(text: str) -> str:
    found = _FORM.fullmatch(text.lower()) if text.isascii() else None
    if found is None:
        raise _none(text)
    scheme, name, address, digits = found.groups()
    port = int(digits) if digits else _DEFAULT_PORTS[scheme]
    if not 1 <= port <= 65535:
        raise _none(text)
    if address is not None:
        try:
            name = f"[{IPv6Address(address).compressed}]"
        except ValueError:
            raise _none(text) from None
    return f"{scheme}://{name}" if port == _DEFAULT_PORTS[scheme] else f"{scheme}://{name}:{port}"


def _none(text: str) -> ValueError:
    return ValueError(f"holds {text[:60]!r}, which is not an origin; allowed are {ALLOWED}")
