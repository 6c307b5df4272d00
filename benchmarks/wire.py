"""A small HTTP/1.1 and SSE client on bare asyncio protocols: it costs little beside what it measures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

import httptools

now = time.perf_counter

Sink = Callable[[bytes], None]


class Broken(Exception):
    """The other side closed the connection, or sent what is no HTTP."""


class Exchange(asyncio.Protocol):
    """One keep-alive connection, with one exchange at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self.status = 0
        self.headers_at = 0.0
        self.reusable = False
        self.body: list[bytes] = []
        self._sink: Sink | None = None
        self._end: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def connection_lost(self, problem: Exception | None) -> None:
        self.is_open = False
        self._fail(repr(problem) if problem else "the connection was closed")

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            self._fail(repr(problem))
            self.transport.close()

    def on_headers_complete(self) -> None:
        self.headers_at = now()
        self.status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        if self._sink is None or self.status >= 300:
            self.body.append(piece)
        else:
            self._sink(piece)

    def on_message_complete(self) -> None:
        self.reusable = self._parser.should_keep_alive()
        if self._end is not None and not self._end.done():
            self._end.set_result(None)

    def begin(self, request: bytes, sink: Sink | None) -> asyncio.Future[None]:
        """Send a request; the future is done when the answer is whole. Raises Broken through it."""
        self._parser = httptools.HttpResponseParser(self)
        self._sink, self.body = sink, []
        self.status, self.headers_at, self.reusable = 0, 0.0, False
        self._end = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._end

    def _fail(self, why: str) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_exception(Broken(why))
            self._end.exception()  # a stream that is only held has nobody who waits


class Http:
    """Connections to one loopback port, kept and used again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Exchange] = []

    async def call(
        self, method: str, path: str, body: bytes | None = None, *, sink: Sink | None = None, headers: str = ""
    ) -> Exchange:
        """One exchange to its end. Raises Broken, OSError."""
        exchange = await self._connection()
        try:
            await exchange.begin(self._request(method, path, body, headers), sink)
        except BaseException:
            exchange.transport.abort()
            raise
        if exchange.reusable and exchange.is_open:
            self._idle.append(exchange)
        else:
            exchange.transport.close()
        return exchange

    async def hold(self, method: str, path: str, body: bytes | None = None, *, headers: str = "") -> Exchange:
        """Begin an exchange and leave it open; what comes is thrown away."""
        exchange = await self._connect()
        exchange.begin(self._request(method, path, body, headers), lambda _: None)
        return exchange

    def close(self) -> None:
        for exchange in self._idle:
            exchange.transport.close()
        self._idle.clear()

    async def _connection(self) -> Exchange:
        while self._idle:
            exchange = self._idle.pop()
            if exchange.is_open and not exchange.transport.is_closing():
                return exchange
        return await self._connect()

    async def _connect(self) -> Exchange:
        _, exchange = await asyncio.get_running_loop().create_connection(Exchange, "127.0.0.1", self._port)
        return exchange

    def _request(self, method: str, path: str, body: bytes | None, headers: str) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\n{headers}"
        if body is not None:
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        return head.encode() + b"\r\n" + (body or b"")


class Blocks:
    """Splits the bytes of an event stream into its blocks, with LF or CRLF; give it to `call` as the sink."""

    def __init__(self, take: Sink) -> None:
        self._take = take
        self._rest = b""

    def __call__(self, piece: bytes) -> None:
        data = self._rest + piece
        if b"\r" in data:
            held = b"\r" if data.endswith(b"\r") else b""
            data = data.removesuffix(b"\r").replace(b"\r\n", b"\n") + held
        *blocks, self._rest = data.split(b"\n\n")
        for block in blocks:
            self._take(block)
