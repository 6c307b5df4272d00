"""The address of the database as people write it: `sqlite`, or a libpq address that may carry a password."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

EMBEDDED = "sqlite"
SCHEMES = ("postgresql", "postgres")
ALLOWED = "`sqlite`, `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, `env:NAME` or `file:/path`"


def database_url(text: str) -> str:
    """Raises ValueError that does not repeat the text: it may hold a password."""
    if text == EMBEDDED or text.startswith(("env:", "file:")):
        return text
    try:
        parts = urlsplit(text)
        fine = parts.scheme in SCHEMES and bool(parts.netloc or parts.path or parts.query)
        _ = parts.port
    except ValueError:
        fine = False
    if not fine or parts.fragment:
        raise ValueError(f"is not the address of a database; allowed are {ALLOWED}")
    return text


def passwords(url: str) -> tuple[str, ...]:
    """Every secret in an address, as written and as meant."""
    if url == EMBEDDED:
        return ()
    parts = urlsplit(url)
    found = [parts.password or "", *(value for name, value in parse_qsl(parts.query) if name == "password")]
    return tuple(dict.fromkeys(form for secret in found if secret for form in (secret, unquote(secret))))


def shown(url: str) -> str:
    """The address without its secrets."""
    if url == EMBEDDED or url.startswith(("env:", "file:")) or not passwords(url):
        return url
    parts = urlsplit(url)
    login, _, place = parts.netloc.rpartition("@")
    netloc = f"{login.partition(':')[0]}:***@{place}" if parts.password else parts.netloc
    query = "&".join(
        "password=***" if item.startswith("password=") else item for item in parts.query.split("&") if item
    )
    return urlunsplit((parts.scheme, netloc, parts.path, query, ""))
