"""`ModelServer`: a scripted, strict, recording model behind the chat-completions API, for sync and async tests.

It runs in a thread with its own event loop on a free loopback port, and stops by itself after `max_seconds`.
Methods named `wait_*` block the caller; their twins `until_*` are awaited. The step functions are importable here.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

import orjson

from tests.kit.model_connection import Connection
from tests.kit.pairing import faults_of
from tests.kit.recording import Recording, Request, Violation, read_request
from tests.kit.script import Reply, ReplyFunction, ReplySource, Script, Step, echo
from tests.kit.steps import (
    call_piece,
    comment,
    cut,
    data,
    delay_headers,
    delta,
    done,
    end,
    error,
    finish,
    headers,
    hold,
    pause,
    raw,
    recut,
    reply_calls,
    reply_text,
    reset,
    role,
    stay_open,
    text,
    thinking,
    tool_call,
    unframed,
    usage,
)

_POLL_S = 0.002


class ModelServer:
    """Use as `with ModelServer() as server` or `async with`. `server.base_url` goes to the service under test."""

    def __init__(self, *, strict: bool = True, max_seconds: float = 900.0) -> None:
        self.strict = strict
        self.unchecked = False
        """Set by a test that breaks the rules on purpose."""
        self.recording = Recording()
        self.port = 0
        self._script = Script()
        self._max_seconds = max_seconds
        self._holds: dict[str, asyncio.Event] = {}
        self._held: Counter[str] = Counter()
        self._arrived: Counter[str] = Counter()
        self._connections: set[Connection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    # life

    def start(self) -> Self:
        """Listen; returns when the port is open."""
        self._thread = threading.Thread(target=self._run, name="model-server", daemon=True)
        self._thread.start()
        if not self._ready.wait(10):
            raise TimeoutError("the model server did not start")
        if self._failure is not None:
            raise RuntimeError("the model server did not start") from self._failure
        return self

    def stop(self) -> None:
        """Close the port and every connection."""
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join(10)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    # what it answers

    def script(self, source: ReplyFunction | Iterable[ReplySource] | Reply) -> None:
        """A function `(request) -> reply or None`; or replies for the next requests, one each; or one reply's steps."""
        self._script.set(source)

    def on(self, marker: str, *replies: ReplySource, once: bool = False) -> None:
        """Replies for requests whose last user text holds the marker, in turn; the last one stays unless `once`."""
        self._script.on(marker, replies, once)

    def default(self, source: ReplySource) -> None:
        """The reply where nothing else fits; an echo at first."""
        self._script.default = source

    def clear(self) -> None:
        """Drop scripts, holds and the recording, as if new (connections and request numbers go on)."""
        self._script.clear()
        for name in list(self._holds):
            self.release(name)
        self._holds.clear()
        self._arrived.clear()
        self.recording.forget()
        self.unchecked = False

    # holds

    def release(self, name: str) -> None:
        """Let all who wait at this hold go on, and those who come later too, until `rearm`."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._hold(name).set)

    def rearm(self, name: str) -> None:
        """Make the hold stop replies again."""
        if self._hold(name).is_set():
            del self._holds[name]

    def held(self, name: str) -> int:
        """How many replies wait at the hold now."""
        return self._held[name]

    def wait_held(self, name: str, count: int = 1, timeout_s: float = 40.0) -> None:
        """Until so many replies have come to the hold, since the start or `clear`."""
        self.wait(lambda: self._arrived[name] >= count, f"{count} replies at hold {name!r}", timeout_s)

    async def until_held(self, name: str, count: int = 1, timeout_s: float = 40.0) -> None:
        """As `wait_held`, awaited."""
        await self.until(lambda: self._arrived[name] >= count, f"{count} replies at hold {name!r}", timeout_s)

    # what it saw

    @property
    def requests(self) -> list[Request]:
        return self.recording.requests

    @property
    def violations(self) -> list[Violation]:
        return self.recording.violations

    @property
    def in_flight(self) -> Counter[str]:
        """Requests in progress by session; `in_flight.total()` for all."""
        return self.recording.in_flight

    @property
    def max_in_flight(self) -> Counter[str]:
        """The most at once by session."""
        return self.recording.max_in_flight

    @property
    def max_in_flight_total(self) -> int:
        """The most at once over all sessions."""
        return self.recording.max_in_flight_total

    def requests_of(self, session: str) -> list[Request]:
        """Those whose messages name the session as `[s:NAME]`."""
        return [request for request in list(self.requests) if request.session == session]

    def requests_with(self, words: str) -> list[Request]:
        """Those whose last user text holds these words."""
        return [request for request in list(self.requests) if words in request.last_user_text]

    def check(self) -> None:
        """Rules R2 and R3, and that no reply function raised."""
        if self.recording.errors:
            raise AssertionError("a reply function raised") from self.recording.errors[0]
        assert not self.violations, f"invalid requests to the model: {self.violations}"
        doubled = {name: count for name, count in self.max_in_flight.items() if name and count > 1}
        assert not doubled, f"several model requests of one session at a time: {doubled}"

    # waiting

    def wait(self, condition: Callable[[], bool], what: str = "the condition", timeout_s: float = 40.0) -> None:
        """Block until the condition holds."""
        limit = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > limit:
                raise TimeoutError(f"no {what} within {timeout_s} s; requests so far: {len(self.requests)}")
            time.sleep(_POLL_S)

    async def until(self, condition: Callable[[], bool], what: str = "the condition", timeout_s: float = 40.0) -> None:
        """Await until the condition holds."""
        limit = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > limit:
                raise TimeoutError(f"no {what} within {timeout_s} s; requests so far: {len(self.requests)}")
            await asyncio.sleep(_POLL_S)

    def wait_requests(self, count: int, timeout_s: float = 40.0) -> None:
        """Block until so many requests are recorded."""
        self.wait(lambda: len(self.requests) >= count, f"{count} requests", timeout_s)

    async def until_requests(self, count: int, timeout_s: float = 40.0) -> None:
        """Await until so many requests are recorded."""
        await self.until(lambda: len(self.requests) >= count, f"{count} requests", timeout_s)

    async def until_idle(self, timeout_s: float = 40.0) -> None:
        """Await until no request is in progress."""
        await self.until(lambda: self.in_flight.total() == 0, "end of all requests", timeout_s)

    # for the connections, in the server's thread

    def receive(self, path: str, fields: dict[str, str], body: bytes) -> tuple[Request, Reply]:
        """Read a request and choose its reply; never raises."""
        number = self.recording.next_number()
        try:
            parsed = orjson.loads(body)
        except orjson.JSONDecodeError:
            parsed = None
        request = read_request(number, path, fields, body, parsed if isinstance(parsed, dict) else {})
        if self.strict:
            request.faults = tuple(faults_of(request.body.get("messages")))
        if request.faults:
            message = "; ".join(request.faults)
            return request, error(400, message, kind="invalid_request_error", code="invalid_messages")
        try:
            return request, self._script.choose(request)
        except Exception as failure:
            self.recording.errors.append(failure)
            return request, error(500, "the test's reply function raised")

    async def pass_hold(self, name: str) -> None:
        """Wait at a hold."""
        event = self._hold(name)
        self._held[name] += 1
        self._arrived[name] += 1
        try:
            await event.wait()
        finally:
            self._held[name] -= 1

    def joined(self, connection: Connection) -> None:
        """A connection was made."""
        self._connections.add(connection)

    def left(self, connection: Connection) -> None:
        """It is gone."""
        self._connections.discard(connection)

    @property
    def connections(self) -> int:
        """Open client connections."""
        return len(self._connections)

    def _hold(self, name: str) -> asyncio.Event:
        return self._holds.setdefault(name, asyncio.Event())

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as failure:
            self._failure = failure
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        listener = await self._loop.create_server(lambda: Connection(self), "127.0.0.1", self.port, backlog=1024)
        self.port = listener.sockets[0].getsockname()[1]
        self._ready.set()
        try:
            async with asyncio.timeout(self._max_seconds):
                await self._stop.wait()
        except TimeoutError:
            pass
        listener.close()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)


__all__ = [
    "ModelServer",
    "Reply",
    "ReplyFunction",
    "ReplySource",
    "Request",
    "Step",
    "call_piece",
    "comment",
    "cut",
    "data",
    "delay_headers",
    "delta",
    "done",
    "echo",
    "end",
    "error",
    "finish",
    "headers",
    "hold",
    "pause",
    "raw",
    "recut",
    "reply_calls",
    "reply_text",
    "reset",
    "role",
    "stay_open",
    "text",
    "thinking",
    "tool_call",
    "unframed",
    "usage",
]
