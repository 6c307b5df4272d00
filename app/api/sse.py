"""The event stream of a run, block by block: ready or accepted, replay and live, heartbeat, gap, shutdown, done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection
from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.types import Receive, Scope, Send

from app.api.problems import problem_json
from app.api.shapes import run_json, wait_json
from app.clock import SystemChance
from app.domain.event import Event, control_frame
from app.domain.tool_event import without_details
from app.errors import InternalError, RunDeleted
from app.events.contract import Watch
from app.events.reader import Place, Quiet
from app.runs.service import Service
from app.store.queries.events import Snapshot, Standing, snapshot, standing
from app.store.queries.runs import record

RETRY_MS = (1000, 3000)
RETRY_AT_SHUTDOWN_MS = (2000, 6000)
"""Drawn at random: browsers come back after exactly that, and all of them at once would be a stampede."""

SEND_TIMEOUT_S = 60.0
"""A reader that takes nothing for so long is cut."""

CUT = "laneway.cut"
"""An extension of the ASGI scope: its `now` cuts the connection, where the server is one that offers it."""

LAST_WORD_S = 2.0
"""How long a stream has for its `shutdown` block when the server that runs the application ends."""

TRIMMED = "trimmed"
"""The reason of a gap where retention has taken events away."""

HEADERS = {"Cache-Control": "no-store, no-transform"}

log = structlog.get_logger("laneway.sse")


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What a client asked to see. `cursor` None: from the beginning. `streams` empty: all. `tool_details`: with the
    arguments and results of tools. `accepted`: the accept body, which then opens the stream in place of `ready`."""

    run_id: str
    principal: str
    cursor: int | None
    from_tail: bool = False
    streams: frozenset[str] = frozenset()
    named: bool = True
    tool_details: bool = True
    accepted: dict[str, Any] | None = None
    ident: str = ""


@dataclass
class RunStream:
    """One client following one run. `open` first, then iterate `frames` once, then `close`.

    `entered`: it has its place at the gate already; either way it is given back by `close`.
    """

    service: Service
    asked: StreamRequest
    entered: bool = False
    chance: SystemChance = field(default_factory=SystemChance)
    place: Place = field(default_factory=lambda: Place(0))
    _watch: Watch | None = None
    _standing: Standing | None = None

    async def open(self, where: Standing | None = None) -> bool:
        """Take the tail, then look where the run stands, unless that is known. False: it has seen the end (204).

        Raises RunNotFound, RunDeleted, RateLimited.
        """
        asked = self.asked
        service = self.service
        self._watch = service.reader.watch(asked.run_id)
        try:
            if where is None:
                find = partial(standing, run_id=asked.run_id, principal=asked.principal)
                where = await service.around.store.read(find)
            cursor = where.seq_last if asked.from_tail else asked.cursor or 0
            if where.status.terminal and cursor == where.seq_last + 1:
                self.close()
                return False
            if not self.entered:
                service.streams.enter(asked.principal)
                self.entered = True
        except BaseException:
            self.close()
            raise
        self.place.cursor = cursor
        self._standing = where
        return True

    def close(self) -> None:
        """Give everything back. May be repeated."""
        if self._watch is not None:
            self._watch.close()
        if self.entered:
            self.entered = False
            self.service.streams.leave(self.asked.principal)

    async def frames(self) -> AsyncIterator[bytes]:
        """The blocks, to the end of the run or of the process."""
        assert self._watch is not None, "open the stream first"
        try:
            async for block in self._blocks(self._watch):
                yield block
                del block
        except RunDeleted as gone:
            yield self._control("problem", problem_json(gone, self.asked.ident))
        except Exception:
            log.exception("stream.failed", run_id=self.asked.run_id)
            text = f"The stream broke; its log has the details under request {self.asked.ident}. Come back."
            yield self._control("problem", problem_json(InternalError(text), self.asked.ident))
        finally:
            self.close()  # before the last chunk: a client that comes again at once must not meet its own ghost

    async def _blocks(self, watch: Watch) -> AsyncIterator[bytes]:
        assert self._standing is not None
        where = self._standing
        lost: Snapshot | None = None
        reason = _why_lost(where, self.place.cursor)
        if reason is not None:
            lost = await self._snapshot()
            self.place.cursor = lost.cursor
        yield self._opening(where)
        if reason is not None and lost is not None:
            yield self._gap(reason, lost)
        over = lost.ended if lost is not None else where.status.terminal and self.place.cursor == where.seq_last
        if not over:
            async for block in self._follow(watch):
                if block is None:
                    return
                yield block
                del block
        yield await self._done()

    async def _follow(self, watch: Watch) -> AsyncIterator[bytes | None]:
        """Events until the terminal one. None: the process goes, and the last block said so."""
        service = self.service
        clock = service.around.clock
        heartbeat_s = service.around.settings.events.heartbeat_seconds
        sent_s = clock.steady_s()
        async for ready in service.reader.follow(self.asked.run_id, watch, self.place, heartbeat_s):
            if ready is Quiet.LOST:
                lost = await self._snapshot()
                self.place.cursor = lost.cursor
                yield self._gap(TRIMMED, lost)
                return
            if ready is Quiet.CLOSING:
                yield self._shutdown()
                yield None
                return
            block = b"" if isinstance(ready, Quiet) else self._block(ready)
            del ready  # an idle stream must not hold what it has sent
            if not block:
                if clock.steady_s() - sent_s < heartbeat_s * 0.99:
                    continue
                block = self._control("heartbeat", {}, event_id=self.place.cursor)
            sent_s = clock.steady_s()
            yield block
            del block

    def _gap(self, reason: str, lost: Snapshot) -> bytes:
        """Something is gone: which, and in its place all that there is."""
        gap = {"reason": reason, "oldestSeq": lost.oldest}
        return self._control("gap", gap, event_id=lost.cursor) + self._control(
            "snapshot", lost.data, event_id=lost.cursor
        )

    def _block(self, events: list[Event]) -> bytes:
        streams, named = self.asked.streams, self.asked.named
        wanted = (event for event in events if not streams or event.stream in streams)
        if not self.asked.tool_details:
            wanted = (without_details(event) if event.stream == "tool" else event for event in wanted)
        return b"".join(event.frame(named=named) for event in wanted)

    def _opening(self, where: Standing) -> bytes:
        retry_ms = self._retry(RETRY_MS)
        if self.asked.accepted is not None:
            return self._control("accepted", self.asked.accepted, event_id=self.place.cursor, retry_ms=retry_ms)
        data = {
            "cursor": str(self.place.cursor),
            "status": where.status.wire,
            "heartbeatSeconds": self.service.around.settings.events.heartbeat_seconds,
        }
        return self._control("ready", data, event_id=self.place.cursor, retry_ms=retry_ms)

    def _shutdown(self) -> bytes:
        return self._control(
            "shutdown", {"reason": "draining"}, event_id=self.place.cursor, retry_ms=self._retry(RETRY_AT_SHUTDOWN_MS)
        )

    async def _done(self) -> bytes:
        find = partial(record, run_id=self.asked.run_id, principal=self.asked.principal)
        ended = await self.service.around.store.read(find)
        return self._control("done", wait_json(ended), event_id=ended.last_seq + 1)

    async def _snapshot(self) -> Snapshot:
        asked = self.asked

        def describe(conn: Connection, run_id: str) -> dict[str, Any]:
            return run_json(record(conn, run_id, asked.principal))

        find = partial(snapshot, run_id=asked.run_id, principal=asked.principal, describe=describe)
        return await self.service.around.store.read(find)

    def _retry(self, bounds: tuple[int, int]) -> int:
        return int(self.chance.between(*bounds))

    def _control(
        self, name: str, data: dict[str, Any], *, event_id: int | None = None, retry_ms: int | None = None
    ) -> bytes:
        return control_frame(
            name,
            data,
            self.service.around.clock.now_ms(),
            run_id=self.asked.run_id,
            event_id=event_id,
            retry_ms=retry_ms,
            named=self.asked.named,
        )


def _why_lost(where: Standing, cursor: int) -> str | None:
    """Why a cursor cannot be gone on from, or None when it can."""
    if cursor > (where.seq_last if where.status.terminal else where.seq_high):
        return "unknown-cursor"
    return TRIMMED if cursor + 1 < where.seq_first else None


class RunStreamResponse(EventSourceResponse):
    """The streaming answer of an opened stream. Blocks are bytes already; we send our own heartbeat."""

    def __init__(self, stream: RunStream, headers: dict[str, str]) -> None:
        super().__init__(
            stream.frames(),
            headers={**HEADERS, **headers},
            ping=0,
            send_timeout=SEND_TIMEOUT_S,
            shutdown_event=stream.service.streams.closing,
            shutdown_grace_period=LAST_WORD_S,
        )
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A client that is gone before the first block leaves a generator that never ran, so the end is here.
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            log.info("stream.cut", run_id=self._stream.asked.run_id, reason="the reader takes nothing")
            # Closed in order, its socket and all that is buffered for it would stay until it has taken that.
            if extension := scope.get("extensions", {}).get(CUT):
                await extension["now"]()
        except asyncio.CancelledError:
            if not self._stream.service.around.tail.closing:
                raise
            log.info("stream.cut", run_id=self._stream.asked.run_id, reason="the reader did not take the last word")
        finally:
            self._stream.close()
