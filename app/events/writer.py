"""The writing half of the event log, for one attempt: gives out numbers, tells deltas at once, writes them behind.

All steps of an attempt pass through here one at a time. A step writes every delta that was told and not yet written
before its own events, so the numbers in the log are at every instant an unbroken beginning of what was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from app.clock import Clock
from app.domain.event import Event, Told
from app.events.contract import Tail
from app.faults import Point, hit
from app.store.contract import Fenced, Store, StoreClosed

R = TypeVar("R")

FLUSH_DELAY_S = 0.01
"""A told delta is handed to the store after at most this; with the commit that stays below 20 ms."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """What a step gets: events told before and not written (`kept`), its own (`own`), and the numbers as committed."""

    kept: tuple[Event, ...]
    own: tuple[Event, ...]
    last: int
    high: int

    @property
    def events(self) -> tuple[Event, ...]:
        return (*self.kept, *self.own)


class KeepDeltas(Protocol):
    """Writes deltas and returns the new reserve (T5). Raises Fenced."""

    def __call__(self, conn: Connection, events: tuple[Event, ...], *, last: int, high: int) -> int: ...


async def outlast(future: asyncio.Future[R]) -> R:
    """Wait for a step's outcome even when cancelled meanwhile; the cancellation is raised afterwards (rule G5)."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as stop:
            cancelled = stop
        except Exception:
            break
    if cancelled is not None:
        if not future.cancelled():
            future.exception()
        raise cancelled
    return future.result()


class EventWriter:
    """Numbers and tells the events of one attempt. `fenced` is called once when a write behind finds the fence."""

    def __init__(  # noqa: PLR0913
        self,
        run_id: str,
        seq_last: int,
        store: Store,
        tail: Tail,
        clock: Clock,
        keep: KeepDeltas,
        fenced: Callable[[], None],
    ) -> None:
        self._run_id = run_id
        self._store = store
        self._tail = tail
        self._clock = clock
        self._keep = keep
        self._fenced = fenced
        self._told = seq_last
        self._written = seq_last
        self._high = seq_last
        self._pending: list[Event] = []
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._flush: asyncio.Task[None] | None = None
        self._closed = False
        self._numbering = False

    async def tell(self, stream: str, payload: bytes) -> None:
        """Tell a delta now; it is written within 20 ms. Waits while the reserve is used up. Raises Fenced."""
        if self._closed:
            raise Fenced
        while self._told >= self._high or self._numbering:
            await self.commit([], self._keep_step, lambda high: high)
        if self._told + 1 == self._high:
            hit(Point.BLOCK_NEARLY_USED)
        self._told += 1
        event = Event(self._run_id, self._told, stream, self._clock.now_ms(), payload)
        self._pending.append(event)
        self._tail.tell((event,))
        if self._timer is None and self._flush is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_DELAY_S, self._start_flush)

    async def commit(
        self,
        items: list[Told],
        step: Callable[[Connection, Numbered], R],
        reserve: Callable[[R], int | None],
    ) -> R:
        """Run a step with the events `items`, told after its COMMIT. Raises what the step raises.

        `reserve(result)` is the new committed reserve, None when it does not change.
        """
        async with self._lock:
            if self._closed:
                raise Fenced
            # While a step with events of its own is on its way, a delta told now would take their numbers.
            self._numbering = bool(items)
            try:
                return await outlast(self._submit(items, step, reserve))
            finally:
                self._numbering = False

    async def last(self, step: Callable[[Connection, Numbered], R], then: Callable[[R], None]) -> R:
        """The step that ends the attempt: it numbers its own events, `then(result)` tells them. Raises what it does."""
        async with self._lock:
            numbered = Numbered(tuple(self._pending), (), self._told, self._high)
            self._numbering = True
            try:
                result = await outlast(self._store.submit(lambda conn: step(conn, numbered), then))
            finally:
                self._numbering = False
            self.close()
            return result

    @property
    def closed(self) -> bool:
        """Whether the attempt has ended here, by itself or by a fence."""
        return self._closed

    def close(self) -> None:
        """Nothing of this attempt is told or written any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _submit(
        self,
        items: list[Told],
        step: Callable[[Connection, Numbered], R],
        reserve: Callable[[R], int | None],
    ) -> asyncio.Future[R]:
        kept = tuple(self._pending)
        now_ms = self._clock.now_ms()
        own = tuple(
            Event(self._run_id, self._told + place, stream, now_ms, payload, terminal=terminal)
            for place, (stream, payload, terminal) in enumerate(items, start=1)
        )
        numbered = Numbered(kept, own, self._written, self._high)

        def committed(result: R) -> None:
            del self._pending[: len(kept)]
            high = reserve(result)
            if high is not None:
                self._high = max(self._high, high)
            if kept or own:
                self._written = (own or kept)[-1].seq
                self._told = max(self._told, self._written)
            self._tail.kept(self._run_id, self._written)
            self._tail.tell(own)

        return self._store.submit(lambda conn: step(conn, numbered), committed)

    def _start_flush(self) -> None:
        self._timer = None
        self._flush = asyncio.get_running_loop().create_task(self._write_behind(), name=f"flush {self._run_id}")

    async def _write_behind(self) -> None:
        hit(Point.DELTAS_TOLD)
        try:
            async with self._lock:
                if self._pending and not self._closed:
                    await outlast(self._submit([], self._keep_step, lambda high: high))
        except Fenced:
            self.close()
            self._fenced()
        except StoreClosed:
            self.close()
        finally:
            self._flush = None
            if self._pending and not self._closed:
                self._timer = asyncio.get_running_loop().call_later(FLUSH_DELAY_S, self._start_flush)

    def _keep_step(self, conn: Connection, numbered: Numbered) -> int:
        return self._keep(conn, numbered.kept, last=numbered.last, high=numbered.high)
