"""Results of tools as they are kept, as the model gets them, and as readers see them: each clean, each with its bound.

Control characters go first, so that they cannot hide a secret; then secrets; then the text is cut, so that no half of a
secret is left at a cut. Which words are secrets is the masker's affair.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.domain.masking import Masker
from app.domain.wellformed import well_formed
from app.tools.contract import Image, Text, ToolOutput

MARGIN = 65_536
"""Characters beyond the bound that are cleaned before the exact cut, since cleaning makes the text shorter."""

STRING_CHARS_MAX = 65_536
"""A terminal's string, such as a title, that has not ended by then is no string: it stays as text."""

DATA_CHARS = 1_024
BASE64_CHARS = 4_096
"""From more than this length on, data written as text is left out. An image is left out at any length."""

TAIL_SHARE = 0.3
TAIL_CHARS = 4_000
KEPT_CHARS_MIN = 2_000
LINE_SHARE = 0.2
"""Where a result for the model is cut: the spec's figures of the reference."""

KEPT_TAIL_BYTES = 16_384
MARK_CHARS = 64
"""Room for the words that say how much is missing."""

_UNSEEN = re.compile("[\x00-\x06\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_ESCAPES = re.compile(
    # Titles and links, which have no line ends; what is not a whole one loses only its beginning. A string is looked
    # through up to the next control character, where the next one may begin: linear.
    rf"(?:\x1b\]|\x9d)(?:[^\x00-\x08\x0a-\x1f\x7f-\x9f]{{0,{STRING_CHARS_MAX}}}+(?:\x07|\x1b\\|\x9c))?"
    rf"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])(?:[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]{{0,{STRING_CHARS_MAX}}}+(?:\x1b\\|\x9c))?"
    r"|(?:\x1b\[|\x9b)[0-?]{0,256}[ -/]{0,16}[@-~]?"  # colours, cursor
    r"|\x1b[ -/]{0,16}[0-~]?"
)
_DATA_URI = re.compile(
    r"data:(?<!\wdata:)([a-z0-9.+-]{1,64}/[a-z0-9.+-]{1,64})?((?:;[\w=.+-]{1,64}){0,4}),[^\s\"'<>()\\`]{1,}+",
    re.IGNORECASE | re.ASCII,
)
_BASE64 = re.compile(rf"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{{{BASE64_CHARS + 1},}}+")
_BASE64_LINES = re.compile(
    r"(?<![A-Za-z0-9+/=_-])(?:[A-Za-z0-9+/=_-]{60,80}\n)+(?:(?:[A-Za-z0-9+/_-]{20,80}={0,2}|[A-Za-z0-9+/_-]{1,19}={1,2})(?=\n|\Z))?"
)
_HEX_LINES = re.compile(r"[0-9A-Fa-f\n]+")
_DIAGNOSTIC = re.compile(
    r"(?i)\b(error|exception|traceback|fail(?:ed|ure|ures)?|exit(?:ed)? (?:code|status|with)|panic|summary|total)\b"
    r"|[}\])]\s*$"
)
_MIME_TYPE = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}", re.ASCII)

_MAGIC = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8[79]a"),
    "image/webp": re.compile(rb"RIFF[\s\S]{4}WEBP"),
    "image/bmp": re.compile(rb"BM"),
    "image/tiff": re.compile(rb"II\*\x00|MM\x00\*"),
    "image/avif": re.compile(rb"[\s\S]{4}ftypavi[fs]"),
    "image/x-icon": re.compile(rb"\x00\x00\x01\x00"),
    "image/svg+xml": re.compile(rb"(?:\xef\xbb\xbf)?\s{0,64}<"),
}


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What is kept of a result. `truncated`: something was left out."""

    text: str
    truncated: bool


def clean(output: ToolOutput, masker: Masker, kept_bytes: int) -> Cleaned:
    """The text to keep, at most `kept_bytes` of UTF-8: the head, and the tail where the middle had to go.

    Cleaning what is clean changes nothing. Time and memory are linear, and bounded by `kept_bytes` beyond reading.
    """
    whole = "\n".join(_text_of(part) for part in output.content)
    room = kept_bytes + MARGIN + masker.longest
    if len(whole) <= 2 * room:
        text = _safe(whole, masker)
        if len(text.encode()) <= kept_bytes:
            return Cleaned(text, truncated=False)
        return Cleaned(_settled(_head_and_tail(text, text, len(text), kept_bytes), masker, kept_bytes), truncated=True)
    # What stands at the cuts may be a half of a secret, which nothing can tell any more.
    head = masker.text(printable(whole[:room]))[: -masker.longest]
    tail = masker.text(printable(whole[-room:]))[masker.longest :]
    text = _head_and_tail(_without_data(head), _without_data(tail), len(whole), kept_bytes)
    return Cleaned(_settled(text, masker, kept_bytes), truncated=True)


def wire_text(text: str, chars: int) -> tuple[str, bool]:
    """As readers see it: the head, and a mark that says how much was left out. And whether it was cut."""
    if len(text) <= chars:
        return text, False
    mark = _mark(len(text) - chars)
    mark = _mark(len(text) - chars + len(mark))  # the mark takes the place of characters too
    head = text[: max(0, chars - len(mark))]
    return f"{head}{_mark(len(text) - len(head))}"[:chars], True


def _mark(omitted: int) -> str:
    return f"\n[... {omitted:,} characters omitted]"


def model_text(text: str, chars: int) -> str:
    """As the model gets it: the head, and the tail too when it looks as if it says how things ended."""
    chars = max(chars, KEPT_CHARS_MIN)
    if len(text) <= chars:
        return text
    tail_chars = min(int(chars * TAIL_SHARE), TAIL_CHARS) if _DIAGNOSTIC.search(text[-2_000:]) else 0
    head = _at_line(text[: chars - tail_chars - MARK_CHARS])
    tail = text[len(text) - tail_chars :] if tail_chars else ""
    mark = f"\n[... {len(text) - len(head) - len(tail):,} characters omitted ...]"
    return f"{head}{mark}\n{tail}" if tail else head + mark


def printable(text: str) -> str:
    """The text as a terminal would leave it on paper: no control characters but line ends and tabs."""
    text = well_formed(text)
    if _CONTROLS.search(text) is None:
        return text
    text = _UNSEEN.sub("", text)  # first, since a terminal sees through them
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    if "\x08" in text:
        text = _struck_out(text)
    return _CONTROLS.sub("", text)


def _text_of(part: Text | Image) -> str:
    if isinstance(part, Text):
        return part.text
    kind = part.mime_type.lower() if _MIME_TYPE.fullmatch(part.mime_type) else "image of no known type"
    expected = _MAGIC.get(kind)
    if expected is None:
        fake = any(magic.match(part.data) for name, magic in _MAGIC.items() if name != "image/svg+xml")
    else:
        fake = not expected.match(part.data)
    claim = ", which it is not" if fake else ""
    return f"[{kind}{claim}, {len(part.data):,} bytes: left out, images are not passed on]"


def _safe(text: str, masker: Masker) -> str:
    return _without_data(masker.text(printable(text)))


def _struck_out(text: str) -> str:
    """What a terminal shows of a text that steps back over its own characters."""
    shown: list[str] = []
    for character in text:
        if character != "\x08":
            shown.append(character)
        elif shown and shown[-1] != "\n":
            shown.pop()
    return "".join(shown)


def _without_data(text: str) -> str:
    if "data:" in text.lower():
        text = _DATA_URI.sub(_data_note, text)
    if len(text) > BASE64_CHARS:
        text = _BASE64.sub(lambda found: f"[base64, {len(found[0]):,} characters: left out]", text)
        text = _BASE64_LINES.sub(_lines_note, text)
    return text


def _data_note(found: re.Match[str]) -> str:
    kind = (found[1] or "data").lower()
    is_image = kind.startswith("image/") and ";base64" in found[2].lower()
    size = len(found[0])
    return f"[{kind}, {size:,} characters: left out]" if is_image or size > DATA_CHARS else found[0]


def _lines_note(found: re.Match[str]) -> str:
    """Base64 has lines of one length; lists of paths have not, and lists of digests are worth reading."""
    block = found[0]
    if len(block) <= BASE64_CHARS or _HEX_LINES.fullmatch(block):
        return block
    widths = {len(line) for line in block.rstrip("\n").split("\n")[:-1]}
    if len(widths) > 1:
        return block
    return f"[base64, {len(block):,} characters: left out]" + "\n" * block.endswith("\n")


def _head_and_tail(head: str, tail: str, whole_chars: int, bytes_max: int) -> str:
    """The beginning of one and the end of the other in so many bytes of UTF-8, no character cut."""
    room = max(0, bytes_max - MARK_CHARS)
    tail_room = min(room // 4, KEPT_TAIL_BYTES)
    kept_head = _beginning(head, room - tail_room)
    kept_tail = tail[-tail_room:].encode()[-tail_room:].decode(errors="ignore") if tail_room else ""
    omitted = max(0, whole_chars - len(kept_head) - len(kept_tail))
    return _beginning(f"{kept_head}\n[... {omitted:,} characters omitted ...]\n{kept_tail}", bytes_max)


def _settled(text: str, masker: Masker, bytes_max: int) -> str:
    """A cut can leave what looks like a secret, or cut a `***`: until nothing changes, it is cleaned and cut again."""
    for _ in range(3):
        again = _beginning(_safe(text, masker), bytes_max)
        if again == text:
            break
        text = again
    return text


def _beginning(text: str, bytes_max: int) -> str:
    return text[:bytes_max].encode()[:bytes_max].decode(errors="ignore")


def _at_line(head: str) -> str:
    """Cut at the end of a line, when there is one near."""
    end = head.rfind("\n")
    return head[:end] if end >= len(head) * (1 - LINE_SHARE) else head
