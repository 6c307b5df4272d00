"""Which tools a run is offered: the operator's allow and deny lists."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def is_offered(name: str, allow: Iterable[str], deny: Iterable[str]) -> bool:
    """Deny wins. Case does not count; `*` and `?` stand for letters."""
    return _matches(name, allow) and not _matches(name, deny)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)
