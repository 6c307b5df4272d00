"""The model server's wire: one HTTP/1.1 connection that reads requests and performs replies step by step.

Each byte string of a step is one `write` on a socket without Nagle's delay. The plain asyncio transport
sends at once what the kernel takes, so borders on the wire are those of the script.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import select
import socket
import struct
import termios
import time
from collections import deque
from typing import Protocol

import httptools
import orjson

from tests.kit.completion import completion_of
from tests.kit.recording import Recording, Request
from tests.kit.steps import Cut, End, Framing, Head, Hold, Pause, Reply, Reset, Unframed, Writes, error

_SSE_FIELDS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}
_FLUSH_LIMIT_S = 2.0
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR
MODELS = {
    "object": "list",
    "data": [{"id": "scripted", "object": "model", "created": 1_700_000_000, "owned_by": "kit"}],
}


class Host(Protocol):
    """What a connection needs of its server."""

    recording: Recording

    def receive(self, path: str, fields: dict[str, str], body: bytes) -> tuple[Request, Reply]:
        """Make the request and choose its reply."""

    async def pass_hold(self, name: str) -> None:
        """Wait until the name is released."""

    def joined(self, connection: Connection) -> None:
        """A connection was made."""

    def left(self, connection: Connection) -> None:
        """It is gone."""


class _Gone(Exception):
    """The connection ended as scripted; nothing more can be sent on it."""


class Connection(asyncio.Protocol):
    """One client connection; requests on it are answered one after the other."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[bytes, str, dict[str, str], bytes]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._url = b""
        self._fields: dict[str, str] = {}
        self._body: list[bytes] = []

    # the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._socket().setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._host.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._host.left(self)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()

    def abort(self) -> None:
        """Close without waiting for anything."""
        if self._transport is not None:
            self._transport.abort()

    # the parser's side

    def on_message_begin(self) -> None:
        self._url, self._fields, self._body = b"", {}, []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._url.partition(b"?")[0].decode("latin-1")
        self._waiting.append((self._parser.get_method(), path, self._fields, b"".join(self._body)))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._answer_all())

    # answering

    async def _answer_all(self) -> None:
        while self._waiting:
            method, path, fields, body = self._waiting.popleft()
            try:
                if method == b"POST" and path.endswith("/chat/completions"):
                    await self._answer_completion(path, fields, body)
                elif method == b"GET" and path.endswith("/models"):
                    self._send(_head(Head(200, {"content-type": "application/json"}, "chunked")))
                    self._send(_framed(orjson.dumps(MODELS), "chunked") + b"0\r\n\r\n")
                else:
                    await Answer(self, self._host, None).perform(
                        error(404, "no such route", kind="invalid_request_error")
                    )
            except _Gone:
                return
            if fields.get("connection", "").lower() == "close" and self._transport is not None:
                self._transport.close()

    async def _answer_completion(self, path: str, fields: dict[str, str], body: bytes) -> None:
        request, reply = self._host.receive(path, fields, body)
        self._host.recording.begin(request, self.client_gone)
        try:
            await Answer(self, self._host, request).perform(reply)
        except asyncio.CancelledError:
            self._host.recording.leave(request)
            raise
        except _Gone:
            self._host.recording.end(request)
            raise
        self._host.recording.end(request)

    # what an answer does to the connection

    async def write(self, data: bytes) -> None:
        """One write, after the peer has room again."""
        if not self._writable.is_set():
            await self._writable.wait()
        self._send(data)

    def client_gone(self) -> bool:
        """True when the peer has closed, also when the loop has not been told yet."""
        if self._transport is None or self._transport.is_closing():
            return True
        poll = select.poll()
        poll.register(self._socket().fileno(), _GONE)
        return bool(poll.poll(0))

    async def reset(self) -> None:
        """RST, once the peer's kernel has everything written so far."""
        await self._flushed()
        self._socket().setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()
        raise _Gone

    async def cut(self) -> None:
        """FIN, and no more."""
        await self._flushed()
        assert self._transport is not None
        self._transport.close()
        raise _Gone

    def _send(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def _socket(self) -> socket.socket:
        assert self._transport is not None
        found: socket.socket = self._transport.get_extra_info("socket")
        return found

    async def _flushed(self) -> None:
        assert self._transport is not None
        until = time.monotonic() + _FLUSH_LIMIT_S
        while time.monotonic() < until:
            unsent = array.array("i", [0])
            fcntl.ioctl(self._socket().fileno(), termios.TIOCOUTQ, unsent)
            if not self._transport.get_write_buffer_size() and not unsent[0]:
                return
            await asyncio.sleep(0.001)


class Answer:
    """One reply being performed on a connection."""

    def __init__(self, connection: Connection, host: Host, request: Request | None) -> None:
        self._connection = connection
        self._host = host
        self._request = request
        self._framing: Framing | None = None
        self._joined: list[bytes] | None = None
        if request is not None and not request.body.get("stream"):
            self._joined = []

    async def perform(self, reply: Reply) -> None:
        """All steps in order, then the end of the body unless a step ended it otherwise."""
        for step in reply:
            match step:
                case Writes():
                    await self._write_all(step)
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Hold(name):
                    await self._host.pass_hold(name)
                case Head():
                    self._joined = None
                    self._framing = step.framing
                    self._note(step.status)
                    await self._connection.write(_head(step))
                case Unframed(data):
                    await self._connection.write(data)
                case Reset():
                    await self._connection.reset()
                case Cut():
                    await self._connection.cut()
                case End():
                    break
        await self._end()

    async def _write_all(self, step: Writes) -> None:
        if self._joined is not None:
            self._joined += step.chunks
        due = time.monotonic()
        for at, chunk in enumerate(step.chunks):
            if at and step.delay_s:
                due += step.delay_s
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            if self._joined is None and chunk:
                await self._write(chunk)

    async def _write(self, chunk: bytes) -> None:
        if self._framing is not None:
            await self._connection.write(_framed(chunk, self._framing))
            return
        self._framing = "chunked"
        self._note(200)
        await self._connection.write(_head(Head()) + _framed(chunk, "chunked"))

    async def _end(self) -> None:
        if self._joined is not None:
            body = orjson.dumps(completion_of(self._joined))
            self._note(200)
            fields = {"content-type": "application/json", "content-length": str(len(body))}
            await self._connection.write(_head(Head(200, fields, "length")) + body)
        elif self._framing is None:
            self._note(200)
            await self._connection.write(_head(Head()) + b"0\r\n\r\n")
        elif self._framing == "chunked":
            await self._connection.write(b"0\r\n\r\n")
        elif self._framing == "close":
            await self._connection.cut()

    def _note(self, status: int) -> None:
        if self._request is not None and self._request.status is None:
            self._request.status = status
            self._request.first_byte_at = time.monotonic()


def _head(head: Head) -> bytes:
    fields = dict(head.fields) if head.fields else dict(_SSE_FIELDS)
    if head.framing == "chunked":
        fields["transfer-encoding"] = "chunked"
    elif head.framing == "close":
        fields["connection"] = "close"
    lines = [f"HTTP/1.1 {head.status} {_REASONS.get(head.status, 'Scripted')}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _framed(data: bytes, framing: Framing) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data) if framing == "chunked" else data
