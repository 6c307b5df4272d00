"""The HTTP transport below the vendors' SDKs: turns refusals into ProviderError and cleans the event stream.

One task reads each body, so that whatever arrived while the reader of the stream was busy is handed on in one piece.
Closing the stream ends that task and the connection; only a stream that is complete gives its connection back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

import httpx2

from app.clock import Clock
from app.providers.contract import ProviderError
from app.providers.errors import bad_response, from_exception, from_payload, from_status
from app.providers.sse import Event, SseReader

ERROR_BODY_BYTES: Final = 64 * 1024
ERROR_BODY_S: Final = 5.0
"""How much of a refusal is read, and for how long, to find out why."""

BACKLOG_BYTES: Final = 1024 * 1024
"""What may arrive ahead of the reader of the stream before reading from the network waits."""

FINISH_GRACE_S: Final = 5.0
"""How long usage and the end mark may take behind the finish reason before the answer counts as complete."""

DRAIN_S: Final = 0.05
"""How long the end of a body may take behind the end mark for its connection to be used again."""

_NO_STREAM: Final = ("text/html", "application/json", "application/problem+json", "application/xml", "text/xml")


class Dialect(Protocol):
    """What a vendor's events mean; `ChatWire` and `MessagesWire`."""

    is_complete: bool
    is_finishing: bool

    def event(self, event: Event) -> None:
        """Take one event."""

    def take(self) -> bytes:
        """The clean bytes of what was taken since."""

    def close(self) -> bytes:
        """The clean bytes of the end; raises when there was none."""


class CleanTransport(httpx2.AsyncBaseTransport):
    """Wraps the transport of one provider's client."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        provider: str,
        dialect: Callable[[], Dialect],
        clock: Clock,
        *,
        has_key: bool = True,
    ) -> None:
        self._inner = inner
        self._provider = provider
        self._dialect = dialect
        self._clock = clock
        self._has_key = has_key

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if not self._has_key:
            # The SDKs insist on a key; a server that wants none is not sent a made-up one.
            for name in ("authorization", "x-api-key"):
                request.headers.pop(name, None)
        response = await self._inner.handle_async_request(request)
        try:
            await self._check(response)
        except BaseException:
            await response.aclose()
            raise
        return httpx2.Response(
            response.status_code,
            headers=[pair for pair in response.headers.raw if pair[0].lower() != b"content-encoding"],
            stream=CleanStream(response, self._provider, self._dialect(), self._clock),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _check(self, response: httpx2.Response) -> None:
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.is_success and media_type not in _NO_STREAM:
            return
        body = await _beginning(response)
        if not response.is_success:
            raise from_status(self._provider, response.status_code, response.headers, body, now_ms=self._clock.now_ms())
        reader, told = SseReader(self._provider), list[Event]()
        reader.feed(b"data:" + body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n", told)
        if told and told[0].value and told[0].value.get("error"):
            raise from_payload(self._provider, told[0].value["error"])
        raise bad_response(
            self._provider, f"answered with {media_type}, not with an event stream; check base_url", retryable=False
        )


class CleanStream(httpx2.AsyncByteStream):
    """The body of one answer, cleaned. Iterated once; raises ProviderError."""

    def __init__(self, response: httpx2.Response, provider: str, dialect: Dialect, clock: Clock) -> None:
        self._response = response
        self._provider = provider
        self._dialect = dialect
        self._clock = clock
        self._sse = SseReader(provider)
        self._chunks: list[bytes] = []
        self._chunks_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._is_ended = False
        self._is_over = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_over:
            return  # an SDK looks once more whether anything follows the end mark
        self._task = asyncio.get_running_loop().create_task(self._read(), name=f"read {self._provider}")
        while not self._is_over:
            await self._arrival()
            clean, failure = self._digest()
            if clean:
                yield clean
            if failure is not None:
                raise failure

    async def aclose(self) -> None:
        """Let go of the connection: give it back when the body is at its end, close it otherwise."""
        task = self._task
        try:
            if task is not None and not task.done():
                if self._is_over and self._failure is None and self._dialect.is_complete:
                    await asyncio.wait((task,), timeout=DRAIN_S)
                if not task.done():
                    task.cancel()
                    await asyncio.wait((task,))
        finally:
            self._is_over = True
            await self._response.aclose()

    async def _read(self) -> None:
        """Read the body to its end; runs as a task of its own."""
        try:
            async for chunk in _decoded(self._response):
                if self._is_over:
                    continue  # behind the end mark
                self._chunks.append(chunk)
                self._chunks_bytes += len(chunk)
                self._wake()
                if self._chunks_bytes > BACKLOG_BYTES:
                    self._room.clear()
                    await self._room.wait()
        except Exception as failure:
            self._failure = self._failure or failure
        finally:
            self._is_ended = True
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _arrival(self) -> None:
        """Return when something came or nothing will."""
        if self._chunks or self._is_ended:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            if self._dialect.is_finishing:
                await asyncio.wait((self._waiter,), timeout=FINISH_GRACE_S)
                self._is_ended = self._is_ended or not self._chunks
            else:
                await self._waiter
        finally:
            self._waiter = None

    def _digest(self) -> tuple[bytes, Exception | None]:
        """Clean what came. Text that stood before a failure is told before it."""
        chunk = b"".join(self._chunks)
        self._chunks.clear()
        self._chunks_bytes = 0
        self._room.set()
        clean = b""
        try:
            self._tell(lambda told: self._sse.feed(chunk, told))
            if self._is_ended and not self._dialect.is_complete:
                strict = self._failure is None and not self._dialect.is_finishing
                self._tell(lambda told: self._sse.finish(told, strict=strict))
            clean = self._dialect.take()
            if self._dialect.is_complete or self._is_ended:
                self._is_over = True
                clean += self._end()
        except ProviderError as failure:
            self._is_over = True
            return clean + self._dialect.take(), failure
        return clean, None

    def _tell(self, read: Callable[[list[Event]], None]) -> None:
        """Hand the events that `read` finds to the dialect, those before a broken one too."""
        told: list[Event] = []
        broken: ProviderError | None = None
        try:
            read(told)
        except ProviderError as failure:
            broken = failure
        for event in told:
            self._dialect.event(event)
            if self._dialect.is_complete:
                return  # whatever follows the end mark, broken or not, is nobody's business
        if broken is not None:
            raise broken

    def _end(self) -> bytes:
        """The clean end, or why there is none. A connection that breaks behind the finish reason broke nothing."""
        if self._failure is None or self._dialect.is_complete or self._dialect.is_finishing:
            return self._dialect.close()
        if isinstance(self._failure, httpx2.TimeoutException):
            raise from_exception(self._provider, self._failure, now_ms=self._clock.now_ms())
        raise bad_response(self._provider, "broke off in the middle of its answer")


async def _beginning(response: httpx2.Response) -> bytes:
    """The first bytes of a body that is not wanted; whatever cannot be read in time is left out."""
    body = bytearray()
    try:
        async with asyncio.timeout(ERROR_BODY_S):
            async for chunk in _decoded(response):
                body += chunk
                if len(body) >= ERROR_BODY_BYTES:
                    break
    except (TimeoutError, httpx2.HTTPError):
        pass
    return bytes(body[:ERROR_BODY_BYTES])


def _decoded(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The body without its content encoding, which is not asked for but may be there all the same."""
    stream = response.stream
    assert isinstance(stream, httpx2.AsyncByteStream)
    if response.headers.get("content-encoding", "identity").lower() == "identity":
        return aiter(stream)
    return response.aiter_bytes()
