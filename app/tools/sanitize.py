"""Results of tools as they are kept, as the model gets them, and as readers see them: each clean, each with its bound.

Control characters go first, so that they cannot hide a secret; then secrets; then the text is cut, so that no half of a
secret is left at a cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.domain.masking import Masker
from app.domain.wellformed import well_formed
from app.tools.contract import Image, Text, ToolOutput

MARGIN = 65_536
"""Characters beyond the bound that are cleaned before the exact cut, since cleaning makes the text shorter."""

DATA_CHARS = 1_024
BASE64_CHARS = 4_096
"""From this length on, data written as text is left out."""

TAIL_SHARE = 0.3
TAIL_CHARS = 4_000
KEPT_CHARS_MIN = 2_000
LINE_SHARE = 0.2
"""Where a result for the model is cut: the spec's figures of the reference."""

_ESCAPES = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c)?"  # OSC: titles, links
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]{0,4096}(?:\x1b\\|\x9c)?"  # DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,16}[@-~]?"  # CSI: colours, cursor
    r"|\x1b[ -/]{0,16}[0-~]?"
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_DATA_URI = re.compile(rf"data:([\w.+-]{{1,64}}/[\w.+-]{{1,64}})?[\w;=.+-]{{0,128}},[\w+/=%-]{{{DATA_CHARS},}}")
_BASE64 = re.compile(
    rf"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/_-](?:[A-Za-z0-9+/=_-]|(?<=[A-Za-z0-9+/=_-]{{60}})\n){{{BASE64_CHARS},}}"
)
_DIAGNOSTIC = re.compile(
    r"(?i)\b(error|exception|traceback|fail(?:ed|ure)?|exit code|panic|summary|total)\b|[}\])]\s*$"
)

_MAGIC = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What is kept of a result. `truncated`: something was left out."""

    text: str
    truncated: bool


def clean(output: ToolOutput, masker: Masker, kept_bytes: int) -> Cleaned:
    """The text to keep, at most `kept_bytes` of UTF-8: the head, and the tail where the middle had to go."""
    whole = "\n".join(_text_of(part) for part in output.content)
    room = kept_bytes + MARGIN
    early = len(whole) > 2 * room
    if early:
        whole = whole[:room] + whole[-room:]
    text = masker.text(_without_data(_printable(whole)))
    size = len(text.encode())
    if not early and size <= kept_bytes:
        return Cleaned(text, truncated=False)
    return Cleaned(_head_and_tail(text, kept_bytes), truncated=True)


def wire_text(text: str, chars: int) -> tuple[str, bool]:
    """As readers see it: the head, and a mark that says how much was left out. And whether it was cut."""
    if len(text) <= chars:
        return text, False
    mark = f"\n[... {len(text) - chars:,} characters omitted]"
    return text[: max(0, chars - len(mark))] + mark, True


def model_text(text: str, chars: int) -> str:
    """As the model gets it: the head, and the tail too when it looks as if it says how things ended."""
    chars = max(chars, KEPT_CHARS_MIN)
    if len(text) <= chars:
        return text
    tail_chars = min(int(chars * TAIL_SHARE), TAIL_CHARS) if _DIAGNOSTIC.search(text[-2_000:]) else 0
    room = chars - tail_chars - 80
    head = _at_line(text[:room])
    tail = text[len(text) - tail_chars :] if tail_chars else ""
    omitted = len(text) - len(head) - len(tail)
    return f"{head}\n[... {omitted:,} characters omitted ...]\n{tail}".rstrip("\n")


def _text_of(part: Text | Image) -> str:
    if isinstance(part, Text):
        return part.text
    real = any(part.data.startswith(start) for start in _MAGIC.get(part.mime_type, ()))
    claim = "" if real else ", which it is not"
    kind = part.mime_type[:64]
    return f"[{kind}{claim}, {len(part.data):,} bytes: left out, images are not passed on]"


def _printable(text: str) -> str:
    text = well_formed(text).replace("\r\n", "\n")
    if "\x1b" in text or _CONTROLS.search(text):
        text = _ESCAPES.sub("", text).replace("\r", "\n")
        if "\x08" in text:
            text = _struck_out(text)
        text = _CONTROLS.sub("", text)
    return text


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
    text = _DATA_URI.sub(lambda found: f"[{found[1] or 'data'}, {len(found[0]):,} characters: left out]", text)
    return _BASE64.sub(lambda found: f"[base64, {len(found[0]):,} characters: left out]", text)


def _head_and_tail(text: str, bytes_max: int) -> str:
    """Both ends of a text in so many bytes of UTF-8, no character cut."""
    data = text.encode()
    mark = f"\n[... about {max(0, len(data) - bytes_max):,} bytes omitted ...]\n"
    room = max(0, bytes_max - len(mark) - 8)
    tail_room = min(room // 4, 16_384)
    head = data[: room - tail_room].decode(errors="ignore")
    tail = data[len(data) - tail_room :].decode(errors="ignore") if tail_room else ""
    return (head + mark + tail).encode()[:bytes_max].decode(errors="ignore")


def _at_line(head: str) -> str:
    """Cut at the end of a line, when there is one near."""
    end = head.rfind("\n")
    return head[:end] if end >= len(head) * (1 - LINE_SHARE) else head
