"""HTTP by hand: requests that no client library would send, and clients that leave in the middle.

`exchange` sends bytes as they are and reads one answer; `leave` sends bytes and goes, without reading.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterable
from typing import Literal
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
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    answer = _Answer()
    parser = httptools.HttpResponseParser(answer)
    sending = asyncio.create_task(_send(writer, data))
    try:
        async with asyncio.timeout(timeout_s):
            while not answer.complete and (piece := await reader.read(65536)):
                parser.feed_data(piece)
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.transport.abort()
    assert answer.complete, f"the connection ended inside the answer: {bytes(answer.body)!r:.200}"
    _described(data, parser.get_status_code(), answer)
    try:
        body = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        body = None
    return Answer(parser.get_status_code(), body, answer.headers)


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


def _described(data: bytes, status: int, answer: _Answer) -> None:
    """The document has to have this answer. Of a stream the head alone is looked at."""
    method, target, *_ = data.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    asked = contract.expect(method, target)
    asked.begun(status, answer.headers)
    if not answer.headers.get("content-type", "").startswith(contract.EVENT_STREAM):
        asked.body(bytes(answer.body))


class _Answer:
    """What the parser calls."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


__all__ = ["Answer", "Leaving", "chunks", "exchange", "head", "json_request", "leave"]
