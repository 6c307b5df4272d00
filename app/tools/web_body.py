"""The body of a web answer: so many bytes of it, unpacked, and as text. What the text means is not looked at here."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Callable
from encodings.aliases import aliases

import httpx

from app.tools.contract import ToolFailed

PACKED_SLACK_BYTES = 65_536
"""How much more a body may take on the wire than unpacked, which only a hostile one does."""

DECLARED_WITHIN_BYTES = 4_096
"""Where a document says what charset it is in; browsers look through 1,024."""

_META_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s{0,8}=\s{0,8}[\"']?([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_XML_CHARSET = re.compile(rb"\s{0,8}<\?xml[^>]{0,200}encoding\s{0,8}=\s{0,8}[\"']([A-Za-z0-9_.:-]{1,40})")
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_CHARSETS = frozenset((
    "utf_8", "utf_16", "utf_16_le", "utf_16_be", "ascii", "latin_1", "iso8859_2", "iso8859_3", "iso8859_4", "iso8859_5",
    "iso8859_6", "iso8859_7", "iso8859_8", "iso8859_9", "iso8859_10", "iso8859_13", "iso8859_14", "iso8859_15",
    "iso8859_16", "cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp866",
    "cp874", "koi8_r", "koi8_u", "mac_roman", "mac_cyrillic", "gbk", "gb2312", "gb18030", "big5", "big5hkscs", "euc_jp",
    "iso2022_jp", "shift_jis", "cp932", "euc_kr", "cp949",
))  # fmt: skip
"""Those of the web. Python knows more, some of which take a time that grows with the square of the text."""

_MEANT = {
    "ascii": "cp1252", "latin_1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932",
    "euc_kr": "cp949",
}  # fmt: skip
"""What browsers take instead, by the Encoding Standard: pages use the larger sets under the names of the smaller."""


async def read(response: httpx.Response, bytes_max: int) -> tuple[bytes, bool]:
    """The body, unpacked, and whether it was cut at `bytes_max`. Raises ToolFailed, and what the transport raises.

    Never more than that is unpacked, however small the packed form is.
    """
    unpack = _unpacker(response.headers.get("content-encoding", ""))
    body = bytearray()
    wire_bytes = 0
    async for piece in response.aiter_raw():
        wire_bytes += len(piece)
        try:
            body += unpack(piece, bytes_max + 1 - len(body))
        except zlib.error:
            raise ToolFailed("The answer is not encoded as it says.") from None
        if len(body) > bytes_max or wire_bytes > bytes_max + PACKED_SLACK_BYTES:
            return bytes(body[:bytes_max]), True
    return bytes(body), False


def text(body: bytes, content_type: str) -> str:
    """By its first bytes, by the header, by what it says itself, else UTF-8. What is not in it becomes U+FFFD."""
    for mark, marked in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(marked, "replace")
    header = re.search(r"charset\s{0,8}=\s{0,8}[\"']?([A-Za-z0-9_.:-]{1,40})", content_type, re.IGNORECASE)
    start = body[:DECLARED_WITHIN_BYTES]
    declared = _XML_CHARSET.match(start) or (_META_CHARSET.search(start) if "html" in content_type.lower() else None)
    charset = _charset(header[1]) if header else None
    if charset is None and declared:
        charset = _charset(declared[1].decode())
        if charset and charset.startswith("utf_16"):
            charset = "utf_8"  # it could not be read if it were true
    return body.decode(charset or "utf_8", "replace")


def _charset(name: str) -> str | None:
    plain = re.sub(r"[-:.]", "_", name.lower())
    module = aliases.get(plain, plain)
    return _MEANT.get(module, module) if module in _CHARSETS else None


class _Inflater:
    """Unpacks `gzip` and `deflate`, the latter with and without the wrapping that the standard wants."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._start: bytes | None = b""

    def __call__(self, piece: bytes, room: int) -> bytes:
        """At most `room` bytes, which is more than none; with that many, the caller stops."""
        if self._start is None:
            return self._inflate.decompress(piece, room)
        piece = self._start + piece
        self._start = piece if len(piece) < 2 else None
        if self._start is not None:
            return b""
        try:
            return self._inflate.decompress(piece, room)
        except zlib.error:
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
            return self._inflate.decompress(piece, room)


def _plain(piece: bytes, room: int) -> bytes:
    return piece[:room]


def _unpacker(encoding: str) -> Callable[[bytes, int], bytes]:
    match encoding.strip().lower():
        case "" | "identity":
            return _plain
        case "gzip" | "x-gzip" | "deflate":
            return _Inflater()
        case _:
            raise ToolFailed(f"The answer is encoded as {encoding[:40]!r}, which cannot be read.")
