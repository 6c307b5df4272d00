"""Text that every encoder takes: lone surrogates out, halves of one character that arrive apart put together."""

from __future__ import annotations

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def well_formed(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def storable(text: str) -> str:
    """`text` well formed and without NUL, which not every database takes; U+FFFD in its place."""
    return well_formed(text).replace("\0", _REPLACEMENT)


class DeltaJoiner:
    """Makes each delta of a message well formed; holds back a first half of a pair until its second half comes."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def feed(self, delta: str) -> str:
        """What of it can be told now; may be empty."""
        if not self._held and delta.isascii():
            return delta
        text = self._held + delta
        self._held = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._held, text = text[-1], text[:-1]
        return well_formed(text)

    def rest(self) -> str:
        """What was held back for good: a replacement mark, or nothing."""
        held, self._held = self._held, ""
        return _REPLACEMENT if held else ""


def whole_end(cut: bytes) -> bytes:
    """UTF-8 that was cut somewhere, without the first bytes of a character whose last ones are missing."""
    for back in range(1, min(3, len(cut)) + 1):
        lead = cut[-back]
        if lead >= 0xC0:
            wanted = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return cut[:-back] if wanted > back else cut
        if lead < 0x80:
            return cut
    return cut


def whole_begin(cut: bytes) -> bytes:
    """UTF-8 that was cut somewhere, without the last bytes of a character whose first ones are missing."""
    at = 0
    while at < min(3, len(cut)) and 0x80 <= cut[at] < 0xC0:
        at += 1
    return cut[at:]
