"""Bodies of answers: how much of them is unpacked, and what they are read as."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator

import httpx
import pytest

from app.tools import web_body
from app.tools.contract import ToolFailed


class Pieces(httpx.AsyncByteStream):
    def __init__(self, body: bytes, size: int) -> None:
        self._body = body
        self._size = size
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self._body), self._size):
            self.taken += 1
            yield self._body[at : at + self._size]


async def read(body: bytes, encoding: str = "", bytes_max: int = 1_000, size: int = 65_536) -> tuple[bytes, bool]:
    return await web_body.read(httpx.Response(200, headers=_headers(encoding), stream=Pieces(body, size)), bytes_max)


def _headers(encoding: str) -> dict[str, str]:
    return {"content-encoding": encoding} if encoding else {}


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


@pytest.mark.parametrize("size", [1, 2, 7, 65_536])
@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("", b"hello world"),
        ("identity", b"hello world"),
        ("gzip", gzip.compress(b"hello world", mtime=0)),
        ("X-GZIP", gzip.compress(b"hello world", mtime=0)),
        ("deflate", zlib.compress(b"hello world")),
        ("deflate", raw_deflate(b"hello world")),
    ],
)
async def test_a_body_is_unpacked_however_it_arrives(encoding: str, packed: bytes, size: int) -> None:
    assert await read(packed, encoding, size=size) == (b"hello world", False)


@pytest.mark.parametrize("encoding", ["", "gzip", "deflate"])
async def test_a_body_is_cut_at_the_bound_and_not_before(encoding: str) -> None:
    pack = {"": bytes, "gzip": gzip.compress, "deflate": zlib.compress}[encoding]
    assert await read(pack(b"x" * 1_000), encoding) == (b"x" * 1_000, False)
    assert await read(pack(b"x" * 1_001), encoding) == (b"x" * 1_000, True)


async def test_of_a_bomb_no_more_is_unpacked_than_is_kept() -> None:
    packer = zlib.compressobj(9, wbits=zlib.MAX_WBITS | 16)
    bomb = b"".join(packer.compress(bytes(1_000_000)) for _ in range(60)) + packer.flush()
    assert len(bomb) < 65_536
    tracemalloc.start()
    try:
        body, cut = await read(bomb, "gzip", 750_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(body), cut) == (750_000, True)
    assert peak < 10_000_000


async def test_reading_ends_when_what_arrives_unpacks_to_nothing() -> None:
    nothing = b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\x00\x00\x00\xff\xff" * 100_000
    stream = Pieces(nothing, 1_000)
    body, cut = await web_body.read(httpx.Response(200, headers=_headers("gzip"), stream=stream), 1_000)
    assert (body, cut) == (b"", True)
    assert stream.taken < 80


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "gzip,deflate", "x" * 1_000])
async def test_other_packing_is_refused(encoding: str) -> None:
    with pytest.raises(ToolFailed) as refused:
        await read(b"x", encoding)
    assert len(str(refused.value)) < 120


async def test_packing_that_is_none_is_told_as_such() -> None:
    with pytest.raises(ToolFailed, match="not encoded as it says"):
        await read(b"plain text", "gzip")


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        ("é".encode(), "text/plain", "é"),
        ("é".encode(), "text/plain; charset=utf-8", "é"),
        ("é".encode("latin-1"), "text/plain; charset=ISO-8859-1", "é"),
        ("“é”".encode("cp1252"), "text/plain; charset=latin1", "“é”"),
        ("漢字".encode("shift_jis"), 'text/plain; charset="Shift_JIS"', "漢字"),
        ("漢字".encode("gbk"), "text/plain;charset=gb2312", "漢字"),
        ("привет".encode("koi8-r"), "text/plain; charset=koi8-r", "привет"),
        ("é".encode("utf-16"), "text/plain; charset=latin1", "é"),
        (b"\xef\xbb\xbfa", "text/plain; charset=latin1", "a"),
        (b"\xff", "text/plain", "\ufffd"),
        (b"a\xffb", "text/plain; charset=utf-8", "a\ufffdb"),
        ('<meta charset="windows-1251">п'.encode("cp1251"), "text/html", '<meta charset="windows-1251">п'),
        (
            '<meta http-equiv=x content="text/html; charset=koi8-r">п'.encode("koi8-r"),
            "text/html",
            '<meta http-equiv=x content="text/html; charset=koi8-r">п',
        ),
        ('<meta charset="utf-16">é'.encode(), "text/html", '<meta charset="utf-16">é'),
        ('<meta charset="latin1">é'.encode(), "text/html; charset=utf-8", '<meta charset="latin1">é'),
        ('<meta charset="latin1">é'.encode(), "text/plain", '<meta charset="latin1">é'),
        (
            '<?xml version="1.0" encoding="iso-8859-1"?>é'.encode("latin-1"),
            "application/xml",
            '<?xml version="1.0" encoding="iso-8859-1"?>é',
        ),
        ("é".encode(), "text/plain; charset=no-such-thing", "é"),
        ("é".encode(), "text/plain; charset=base64", "é"),
        ("é".encode(), "text/plain; charset=punycode", "é"),
        ("é".encode(), "text/plain; charset=unicode_escape", "é"),
        ("é".encode(), "text/plain; charset=idna", "é"),
    ],
)
def test_text_is_read_in_its_charset(body: bytes, content_type: str, text: str) -> None:
    assert web_body.text(body, content_type) == text
