"""Cursors: what a client sends back to go on. A run stream's is a number; a list's is opaque text."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Any

import orjson

SEQ_DIGITS_MAX = 15
"""Longest event number taken from outside: 10^15 events are more than a run can have."""


def parse_seq(text: str) -> int | None:
    """The event number in a run-stream cursor, or None when it is malformed (anything but 1 to 15 ASCII digits)."""
    if 0 < len(text) <= SEQ_DIGITS_MAX and text.isascii() and text.isdigit():
        return int(text)
    return None


def filters_mark(kind: str, filters: dict[str, Any]) -> str:
    """A short mark of a list's kind and filters; a cursor is good only where the mark is the same."""
    return hashlib.sha256(orjson.dumps([kind, filters], option=orjson.OPT_SORT_KEYS)).hexdigest()[:12]


def encode_position(mark: str, position: list[int | str]) -> str:
    """Opaque list cursor: the mark and the position (time and id) of the last row given out."""
    return base64.urlsafe_b64encode(orjson.dumps([mark, *position])).decode().rstrip("=")


def decode_position(mark: str, text: str) -> list[int | str] | None:
    """The position, or None when the cursor is malformed or belongs to another list or filter."""
    try:
        value = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError):
        return None
    if not isinstance(value, list) or len(value) != 3 or value[0] != mark:
        return None
    at, ident = value[1], value[2]
    if _is_number(at) and (isinstance(ident, str) or _is_number(ident)):
        return [at, ident]
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
