"""Reasoning that a model writes into its text, between `<think>` and `</think>` at the very start of the answer.

Only there: tags further on are the model's own words about tags and stay text. Servers that have a field of its own for
reasoning never get here.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"


class _At(Enum):
    START = "start"
    INSIDE = "inside"
    BEHIND = "behind"
    TEXT = "text"


class ThinkTags:
    """Splits text as it comes into reasoning and text; holds back only what may still be part of a tag."""

    __slots__ = ("_at", "_held")

    def __init__(self) -> None:
        self._at = _At.START
        self._held = ""

    @property
    def is_done(self) -> bool:
        """All further text is text."""
        return self._at is _At.TEXT

    def feed(self, text: str) -> tuple[str, str]:
        """The reasoning and the text that can be told now."""
        text = self._held + text
        self._held = ""
        thinking = ""
        if self._at is _At.START:
            begun = text.lstrip()
            if begun.startswith(_OPEN):
                self._at, text = _At.INSIDE, begun[len(_OPEN) :]
            elif _OPEN.startswith(begun):
                self._held = text
                return "", ""
            else:
                self._at = _At.TEXT
        if self._at is _At.INSIDE:
            thinking, closed, text = text.partition(_CLOSE)
            if not closed:
                kept = _tag_begun(thinking)
                self._held = thinking[len(thinking) - kept :]
                return thinking[: len(thinking) - kept], ""
            self._at = _At.BEHIND
        if self._at is _At.BEHIND:
            text = text.lstrip()
            if text:
                self._at = _At.TEXT
        return thinking, text

    def rest(self) -> tuple[str, str]:
        """The answer is over: what was held back is reasoning when inside the tags, else text."""
        held, self._held = self._held, ""
        return (held, "") if self._at is _At.INSIDE else ("", held)


def _tag_begun(text: str) -> int:
    """How many characters at the end of `text` may be the beginning of the closing tag."""
    for size in range(min(len(text), len(_CLOSE) - 1), 0, -1):
        if _CLOSE.startswith(text[-size:]):
            return size
    return 0
