"""What is measured: the model server itself, the bare service, and the real one. Each runs a message and times it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

import orjson

from benchmarks.model import DELTA_CHARS
from benchmarks.process import Process
from benchmarks.wire import Blocks, Broken, Exchange, Http, now

CALL_S_MAX = 60.0
EVENT_STREAM = "accept: text/event-stream\r\n"

_CONTENT = re.compile(rb'"content":"([^"]+)"')
_DURATION = re.compile(rb'"durationMs":(\d+)')
_DELTA = re.compile(rb'"delta":"([^"]+)"')


@dataclass(slots=True)
class Call:
    """One call with its instants: begun, accepted (headers, or the run id), first text, done. Zero: never came.

    With tools also when they were asked for, when all had answered, and how long the slowest of them took.
    """

    begun: float
    accepted: float = 0.0
    first: float = 0.0
    done: float = 0.0
    chars: int = 0
    events: int = 0
    asked: float = 0.0
    answered: float = 0.0
    tool_ms: float = 0.0

    @property
    def tools_ms(self) -> float:
        """From the first request for a tool until all results are kept, without the time of the slowest tool itself."""
        return (self.answered - self.asked) * 1000 - self.tool_ms

    @property
    def deltas(self) -> float:
        """The model's deltas, also when several came joined."""
        return self.chars / DELTA_CHARS

    def text(self, text: bytes) -> None:
        self.first = self.first or now()
        self.events += 1
        self.chars += len(text)


Take = Callable[[Call, bytes], bool]
"""Reads one block of a stream into the call; true when it was the last."""


class Target(Protocol):
    """Anything that runs a message. `spec` is what the model shall do, see `model`."""

    name: str
    process: Process

    async def run(self, session: str, spec: str) -> Call:
        """To the end of the answer. Raises Broken when there was none."""

    async def accept(self, session: str, spec: str) -> Call:
        """Until the message is known to be kept."""


def prompt(spec: str) -> str:
    return f"Say something. #model:{spec}#"


class Direct:
    """The client at the model server. It keeps nothing, so that its accept is a whole call."""

    name = "direct"

    def __init__(self, process: Process) -> None:
        self.process = process
        self._http = Http(process.port)

    async def run(self, session: str, spec: str) -> Call:
        asked = {"model": "bench", "stream": True, "messages": [{"role": "user", "content": prompt(spec)}]}
        return await _stream(self._http, "/v1/chat/completions", orjson.dumps(asked), _take_content)

    async def accept(self, session: str, spec: str) -> Call:
        call = await self.run(session, "d1")
        call.accepted = call.done
        return call


class Floor:
    """The bare service."""

    name = "floor"

    def __init__(self, process: Process) -> None:
        self.process = process
        self._http = Http(process.port)

    async def run(self, session: str, spec: str) -> Call:
        return await _stream(self._http, "/runs", orjson.dumps({"message": prompt(spec)}), _take_content)

    async def accept(self, session: str, spec: str) -> Call:
        return await _post(self._http, "/rows", {"message": prompt(spec)})


class Laneway:
    """The real service."""

    name = "laneway"
    RUNS = "/api/v1/runs"

    def __init__(self, process: Process) -> None:
        self.process = process
        self._http = Http(process.port)

    async def run(self, session: str, spec: str) -> Call:
        """Post and follow in one request."""
        return await _stream(self._http, self.RUNS, self._body(session, spec), _take_delta)

    async def run_in_two(self, session: str, spec: str) -> Call:
        """Post, then follow the run with a second request."""
        call = Call(now())
        run_id = await self._accepted(call, session, spec)
        path = f"{self.RUNS}/{run_id}/events"
        return await _stream(self._http, path, None, _take_delta, call)

    async def accept(self, session: str, spec: str) -> Call:
        call = Call(now())
        await self._accepted(call, session, spec)
        return call

    async def start(self, session: str, spec: str) -> str:
        """Accept a run and return its id."""
        return await self._accepted(Call(now()), session, spec)

    async def hold(self, run_id: str) -> Exchange:
        """Follow a run and leave the stream open."""
        return await self._http.hold("GET", f"{self.RUNS}/{run_id}/events")

    async def _accepted(self, call: Call, session: str, spec: str) -> str:
        async with asyncio.timeout(CALL_S_MAX):
            exchange = await self._http.call("POST", self.RUNS, self._body(session, spec))
        call.accepted = call.done = now()
        if exchange.status != 202:
            raise _refused(exchange)
        return str(orjson.loads(b"".join(exchange.body))["runId"])

    @staticmethod
    def _body(session: str, spec: str) -> bytes:
        return orjson.dumps({"message": prompt(spec), "sessionKey": f"agent:main:{session}"})


def session() -> str:
    """A session that nobody has used."""
    return uuid4().hex


async def _post(http: Http, path: str, body: dict[str, str]) -> Call:
    call = Call(now())
    async with asyncio.timeout(CALL_S_MAX):
        exchange = await http.call("POST", path, orjson.dumps(body))
    call.accepted = call.done = now()
    if exchange.status != 202:
        raise _refused(exchange)
    return call


def _take_content(call: Call, block: bytes) -> bool:
    found = _CONTENT.search(block)
    if found:
        call.text(found[1])
    return block.endswith(b"[DONE]")


def _take_delta(call: Call, block: bytes) -> bool:
    if b"event: assistant\n" in block:
        found = _DELTA.search(block)
        if found:
            call.text(found[1])
    elif b"event: tool\n" in block:
        call.asked = call.asked or now()
        found = _DURATION.search(block)
        if found:
            call.tool_ms = max(call.tool_ms, float(found[1]))
    elif b'"phase":"step-end"' in block:
        call.answered = now()
    return b"event: done\n" in block


async def _stream(http: Http, path: str, body: bytes | None, take: Take, call: Call | None = None) -> Call:
    """One answer as a stream, to the block that `take` calls the last."""
    call = call or Call(now())

    def block(data: bytes) -> None:
        if take(call, data):
            call.done = now()

    method = "GET" if body is None else "POST"
    async with asyncio.timeout(CALL_S_MAX):
        exchange = await http.call(method, path, body, sink=Blocks(block), headers=EVENT_STREAM)
    if exchange.status != 200:
        raise _refused(exchange)
    call.accepted = call.accepted or exchange.headers_at
    if not call.done or not call.chars:
        raise Broken(f"the stream ended early, after {call.chars} characters")
    return call


def _refused(exchange: Exchange) -> Broken:
    return Broken(f"HTTP {exchange.status}: {b''.join(exchange.body)[:300].decode(errors='replace')}")
