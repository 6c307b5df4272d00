"""Borrowing: a text that stands in the transcript is kept there alone, and what else was told with it points to it.

In place of a borrowed text stands `{"$entry": [entry number, part, first code point, code points]}`. Nothing is
borrowed unless it comes back byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

CHARS_MIN = 256
"""Of a text that is worth it."""

_MARK = "$entry"
_DEPTH_MAX = 4
"""No text of a message, an input, a reply or a result stands deeper."""

ENTRY_CHARS_MAX = 1 << 20
"""Of an entry that lends: it is read whole for each page of what borrows from it."""

EntryTexts = Mapping[int, Sequence[str]]
"""By the number of an entry: the text of each of its parts, empty for a part without one."""


def part_texts(entry: str) -> list[str]:
    """The texts of an entry, from its transcript row."""
    return [part.get("text", part.get("content", "")) for part in orjson.loads(entry)["parts"]]


def is_long(value: Any, depth: int = 0) -> bool:
    """Whether a JSON value has a text in it that is worth borrowing."""
    if isinstance(value, str):
        return len(value) >= CHARS_MIN
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < _DEPTH_MAX and any(is_long(one, depth + 1) for one in inside)


def borrow(document: str, texts: EntryTexts) -> str | None:
    """A JSON document with each long text in it that an entry has borrowed; None when there is none."""
    if f'"{_MARK}"' in document:
        return None  # somebody's own words
    told = orjson.loads(document)
    first = told.get("offset", 0)
    borrowed = _dumped(_changed(told, lambda value: _place(value, texts, first)))
    return borrowed if len(borrowed) < len(document) and restore(borrowed, texts) == document else None


def restore(document: str, texts: EntryTexts) -> str:
    """The document as it was. Raises KeyError when `texts` has not all of `lenders`."""

    def text_of(value: Any) -> Any:
        if not isinstance(value, dict) or _MARK not in value:
            return value
        entry_no, part, first, length = value[_MARK]
        return texts[entry_no][part][first : first + length]

    return _dumped(_changed(orjson.loads(document), text_of))


def lenders(document: str) -> set[int]:
    """The numbers of the entries that a document borrows from."""
    found: set[int] = set()

    def note(value: Any) -> Any:
        if isinstance(value, dict) and _MARK in value:
            found.add(value[_MARK][0])
        return value

    _changed(orjson.loads(document), note)
    return found


def _place(value: Any, texts: EntryTexts, first: int) -> Any:
    """What stands for a value. A delta says where in the text it begins; all others are its beginning."""
    if not isinstance(value, str) or len(value) < CHARS_MIN:
        return value
    for entry_no, parts in texts.items():
        for part, text in enumerate(parts):
            if text.startswith(value, first):
                return {_MARK: [entry_no, part, first, len(value)]}
    return value


def _changed(value: Any, change: Callable[[Any], Any], depth: int = 0) -> Any:
    """A JSON value with `change` applied to it, or else to what is in it."""
    changed = change(value)
    if changed is not value or depth == _DEPTH_MAX:
        return changed
    if isinstance(value, dict):
        return {name: _changed(one, change, depth + 1) for name, one in value.items()}
    if isinstance(value, list):
        return [_changed(one, change, depth + 1) for one in value]
    return value


def _dumped(value: Any) -> str:
    return orjson.dumps(value).decode()
