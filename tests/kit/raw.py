"""HTTP by hand: requests that no client library would send, and clients that leave in the middle.

`exchange` sends bytes as they are and reads one answer, `exchanges` several; `leave` sends bytes and goes unread.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import httptools
import orjson

from tests.kit import contract
from tests.kit.client import Answer

Leaving = Literal["close", "reset", "half"]


def head(
    method: str, path: str, headers: Iterable[tuple[str, str | bytes]] = (), *, host: str | None = "localhost"
) -> bytes:
    """A request head; headers may come twice and hold any bytes. `host=None` leaves the header out."""
    named: list[tuple[str, str | bytes]] = [*([("Host", host)] if host is not None else []), *headers]
    lines = [f"{method} {path} HTTP/1.1".encode()]
    lines += [name.encode() + b": " + (value if isinstance(value, bytes) else value.encode()) for name, value in named]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def json_request(
    method: str, path: str, body: object, headers: Iterable[tuple[str, str | bytes]] = (), *, host: str = "localhost"
) -> bytes:
    """A whole request with a JSON body."""
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    named = [("Content-Type", "application/json"), ("Content-Length", str(len(content))), *headers]
    return head(method, path, named, host=host) + content


def chunks(pieces: Iterable[bytes]) -> bytes:
    """A chunked body with its end."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def exchange(address: str, data: bytes, *, timeout_s: float = 30.0) -> Answer:
    """Send these bytes to a real service, read one answer. AssertionError when the connection ends first."""
    return (await exchanges(address, [data], timeout_s=timeout_s))[0]


async def exchanges(address: str, requests: Sequence[bytes], *, timeout_s: float = 30.0) -> list[Answer]:
    """Send requests at once over one connection, read an answer of each."""
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    answers = _Answers()
    parser = answers.parser = httptools.HttpResponseParser(answers)
    sending = asyncio.create_task(_send(writer, b"".join(requests)))
    try:
        async with asyncio.timeout(timeout_s):
            while len(answers.whole) < len(requests) and (piece := await reader.read(65536)):
                parser.feed_data(piece)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.transport.abort()
    left = bytes(answers.last.body)
    assert len(answers.whole) == len(requests), f"the connection ended inside an answer: {left!r:.200}"
    return [_checked(data, raw) for data, raw in zip(requests, answers.whole, strict=True)]


async def leave(address: str, data: bytes, how: Leaving = "close", *, after_head: bool = False) -> socket.socket | None:
    """Send these bytes and go: closed, reset, or (`half`) only silent, in which case the socket is the caller's.

    `after_head`: once the status line has come.
    """
    parts = urlsplit(address)
    loop = asyncio.get_running_loop()
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.setblocking(False)
    try:
        await loop.sock_connect(connection, (parts.hostname, parts.port))
        await loop.sock_sendall(connection, data)
        if after_head:
            await loop.sock_recv(connection, 16)
    except OSError:
        connection.close()
        raise
    if how == "half":
        return connection
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    return None


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """In pieces, so that an answer that comes before the end of the request is seen."""
    for at in range(0, len(data), 65536):
        writer.write(data[at : at + 65536])
        await writer.drain()


@dataclass
class _Raw:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)


def _checked(data: bytes, raw: _Raw) -> Answer:
    """The answer, which the document has to have. Of a stream the head alone is looked at."""
    method, target, *_ = data.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    asked = contract.expect(method, target)
    asked.begun(raw.status, raw.headers)
    if not raw.headers.get("content-type", "").startswith(contract.EVENT_STREAM):
        asked.body(bytes(raw.body))
    try:
        body = orjson.loads(raw.body)
    except orjson.JSONDecodeError:
        body = None
    return Answer(raw.status, body, raw.headers)


class _Answers:
    """What the parser calls."""

    parser: Any

    def __init__(self) -> None:
        self.last = _Raw()
        self.whole: list[_Raw] = []

    def on_message_begin(self) -> None:
        self.last = _Raw()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.last.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.last.status = self.parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.last.body += data

    def on_message_complete(self) -> None:
        self.whole.append(self.last)


__all__ = ["Answer", "Leaving", "chunks", "exchange", "exchanges", "head", "json_request", "leave"]
