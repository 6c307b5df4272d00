"""`Stream`: one HTTP answer read on a bare socket, so that a test owns when bytes are taken and how it ends.

Nothing is read ahead: as long as the test does not ask for events, the kernel's buffers fill and the service
feels a slow reader. A small `receive_buffer` makes that quick.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

import httptools
import orjson

from tests.kit.contract import Exchange, expect
from tests.kit.sse_parser import Event, Parser

_READ_BYTES = 65536


class StreamCut(ConnectionError):
    """The connection ended inside the body."""


class Stream:
    """Made by `await Stream.open(...)`; iterate it with `async for`, or use one of the collecting methods.

    `events` holds all that came so far, `last_id` the cursor a browser would send back, `violations` what the strict
    parser found. `finished`: the body ended cleanly; `truncated`: the connection ended inside it. `asked`: the
    answer is a real service's, and what its document does not say is raised.
    """

    def __init__(self, connection: socket.socket, url: str, asked: Exchange | None = None) -> None:
        self.url = url
        self.status = 0
        self.headers: dict[str, str] = {}
        self.events: list[Event] = []
        self.finished = False
        self.truncated = False
        self.opened_at = time.monotonic()
        self.head_at: float | None = None
        self.byte_at = self.opened_at
        """When the last byte came."""
        self.bytes_read = 0
        self._socket: socket.socket | None = connection
        self._asked = asked
        self._http = httptools.HttpResponseParser(self)
        self._sse: Parser | None = None
        self._ready: deque[Event] = deque()
        self._body: list[bytes] = []
        self._at_end = False
        self._came: asyncio.Future[None] | None = None

    @classmethod
    async def open(  # noqa: PLR0913
        cls,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        receive_buffer: int | None = None,
        timeout_s: float = 15.0,
        described: bool = False,
    ) -> Self:
        """Connect, send the request, read the head. Raises OSError or TimeoutError; any status is an answer.

        `described`: the answer has to be one that the OpenAPI document has.
        """
        parts = urlsplit(url)
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        named = {"host": parts.netloc, "accept": "text/event-stream"}
        named |= {name.lower(): value for name, value in (headers or {}).items()}
        if body is not None:
            named |= {"content-length": str(len(body)), "content-type": named.get("content-type", "application/json")}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
        stream = cls(connection, url, expect(method, target) if described else None)
        try:
            async with asyncio.timeout(timeout_s):
                loop = asyncio.get_running_loop()
                await loop.sock_connect(connection, (parts.hostname or "127.0.0.1", parts.port or 80))
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_sendall(connection, ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b""))
                while stream.head_at is None and await stream._read():
                    pass
            if stream._asked is not None and stream.head_at is not None:
                stream._asked.begun(stream.status, stream.headers)
        except BaseException:
            stream.abort()
            raise
        if stream.head_at is None:
            stream.close()
            raise StreamCut(f"the connection ended before the head of {url}")
        return stream

    # reading

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._ready:
            if not await self._read():
                raise StopAsyncIteration
        event = self._ready.popleft()
        self.events.append(event)
        if self._asked is not None:
            self._asked.told(event)
        return event

    async def next_event(self, timeout_s: float = 10.0) -> Event:
        """The next event; TimeoutError when none comes, StreamCut when the stream is over."""
        async with asyncio.timeout(timeout_s):
            async for event in self:
                return event
        raise StreamCut(f"the stream ended after {len(self.events)} events (status {self.status})")

    async def until(self, condition: Callable[[Event], bool], timeout_s: float = 10.0) -> Event:
        """Read on to the first event that fits."""
        async with asyncio.timeout(timeout_s):
            async for event in self:
                if condition(event):
                    return event
        raise StreamCut(f"the stream ended after {len(self.events)} events (status {self.status})")

    async def collect_until_done(self, timeout_s: float = 30.0) -> list[Event]:
        """Read to `done` or the end of the body; all events of this stream. TimeoutError tells the last ones."""
        try:
            async with asyncio.timeout(timeout_s):
                async for event in self:
                    if event.event == "done" or event.stream == "done":
                        break
        except TimeoutError:
            last = [(event.id, event.stream, event.phase) for event in self.events[-5:]]
            raise TimeoutError(f"no done within {timeout_s} s; {len(self.events)} events, the last: {last}") from None
        return self.events

    async def collect_for(self, seconds: float) -> list[Event]:
        """Read for so long or to the end; returns the events that came in this time."""
        before = len(self.events)
        try:
            async with asyncio.timeout(seconds):
                async for _ in self:
                    pass
        except TimeoutError:
            pass
        return self.events[before:]

    async def expect_end(self, timeout_s: float = 5.0) -> list[Event]:
        """Read to the end of the body; returns what still came. TimeoutError when the service keeps it open."""
        before = len(self.events)
        async with asyncio.timeout(timeout_s):
            async for _ in self:
                pass
        return self.events[before:]

    async def body(self, timeout_s: float = 10.0) -> bytes:
        """The whole body of an answer that is no event stream."""
        async with asyncio.timeout(timeout_s):
            while await self._read():
                pass
        content = b"".join(self._body)
        if self._asked is not None and self.finished:
            self._asked.body(content)
        return content

    async def json(self, timeout_s: float = 10.0) -> Any:
        """The body as JSON (a problem, mostly)."""
        return orjson.loads(await self.body(timeout_s))

    @property
    def done(self) -> Event | None:
        """The `done` event, once it has come."""
        return self.events[-1] if self.events and self.events[-1].stream == "done" else None

    @property
    def last_id(self) -> str:
        return self.events[-1].last_id if self.events else ""

    @property
    def violations(self) -> list[str]:
        return self._sse.violations if self._sse is not None else []

    # ending

    def close(self) -> None:
        """Close the socket in the ordinary way. (Unread bytes make the kernel send a reset all the same.)"""
        self._at_end = True
        if self._socket is None:
            return
        if self._came is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._wake()
        self._socket.close()
        self._socket = None

    def abort(self) -> None:
        """Reset the connection."""
        if self._socket is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def widen(self, receive_buffer: int = 4_194_304) -> None:
        """Let the kernel take more from now on: a reader that was slow catches up."""
        assert self._socket is not None
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)

    def half_close(self) -> None:
        """Say that nothing more will be sent, and go on reading."""
        assert self._socket is not None
        self._socket.shutdown(socket.SHUT_WR)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # the parser's side

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._http.get_status_code()
        self.head_at = time.monotonic()
        if self.status == 200 and self.headers.get("content-type", "").startswith("text/event-stream"):
            self._sse = Parser()

    def on_body(self, data: bytes) -> None:
        if self._sse is None:
            self._body.append(data)
        else:
            self._ready.extend(self._sse.feed(data))

    def on_message_complete(self) -> None:
        self.finished = True
        self._at_end = True

    async def _read(self) -> bool:
        """Take one portion of bytes; False at the end."""
        if self._at_end or self._socket is None:
            return False
        try:
            data = await self._receive(self._socket)
        except OSError:
            data = b""
        if not data:
            self._at_end = True
            framed = "chunked" in self.headers.get("transfer-encoding", "") or "content-length" in self.headers
            self.truncated = framed or self.head_at is None
            self.finished = not self.truncated
            return False
        self.byte_at = time.monotonic()
        self.bytes_read += len(data)
        self._http.feed_data(data)
        return True

    async def _receive(self, connection: socket.socket) -> bytes:
        await asyncio.sleep(0)
        while True:
            if self._socket is None:
                return b""
            try:
                return connection.recv(_READ_BYTES)
            except BlockingIOError:
                await self._readable(connection)

    async def _readable(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        assert self._came is None, "two readers of one stream"
        self._came = loop.create_future()
        loop.add_reader(connection.fileno(), self._wake)
        try:
            await self._came
        finally:
            self._came = None
            if self._socket is not None:
                loop.remove_reader(connection.fileno())

    def _wake(self) -> None:
        if self._came is not None and not self._came.done():
            self._came.set_result(None)
