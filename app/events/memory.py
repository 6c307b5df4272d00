"""The tail in one process: a bounded ring of told events for each run that is executing or watched."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from app.domain.event import Event

RING_EVENTS = 2048
RING_BYTES = 1 << 20


class _Ring:
    """What was told of a run lately. Only what the log has may leave it."""

    __slots__ = (
        "bytes",
        "ended",
        "events",
        "kept",
        "last",
        "missed",
        "readers",
        "sleepers",
        "turn",
        "version",
        "waiters",
    )

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.bytes = 0
        self.kept = 0
        self.last = 0
        self.version = 0
        self.readers = 0
        self.ended = False
        self.missed = False
        self.turn = 0
        self.sleepers: set[asyncio.Future[None]] = set()
        self.waiters: set[asyncio.Future[None]] = set()

    def add(self, event: Event) -> None:
        if event.seq <= self.last:
            return
        if self.events and not event.follows(self.last):
            self.events.clear()
            self.bytes = 0
        self.events.append(event)
        self.bytes += len(event.payload)
        self.last = event.seq
        self.ended = self.ended or event.terminal

    def trim(self) -> None:
        while self.events and (len(self.events) > RING_EVENTS or self.bytes > RING_BYTES):
            oldest = self.events[0]
            if oldest.seq > self.kept:
                return
            self.events.popleft()
            self.bytes -= len(oldest.payload)

    def rouse(self, *, turned: bool) -> None:
        """Wake the readers; with `turned` also those who only want to know of the end."""
        self.version += 1
        _wake_all(self.sleepers)
        if turned:
            self.turn += 1
            _wake_all(self.waiters)


def _wake_all(sleepers: set[asyncio.Future[None]]) -> None:
    for sleeper in sleepers:
        if not sleeper.done():
            sleeper.set_result(None)
    sleepers.clear()


async def _sleep(sleepers: set[asyncio.Future[None]], timeout_s: float) -> bool:
    sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    sleepers.add(sleeper)
    try:
        async with asyncio.timeout(timeout_s):
            await sleeper
        return True
    except TimeoutError:
        return False
    finally:
        sleepers.discard(sleeper)


class MemoryWatch:
    """A reader of one ring."""

    __slots__ = ("_open", "_ring", "_run_id", "_tail")

    def __init__(self, tail: MemoryTail, run_id: str, ring: _Ring) -> None:
        self._tail = tail
        self._run_id = run_id
        self._ring = ring
        self._open = True
        ring.readers += 1

    def after(self, cursor: int) -> list[Event] | None:
        events = self._ring.events
        if not events or not (events[0].follows(cursor) or events[0].seq <= cursor):
            self._ring.missed = True
            return None
        last = events[-1].seq
        if cursor >= last:
            return [] if cursor == last else None
        # Numbers rise by one but for jumps and folds, so the place is at most this far from the end.
        fresh: deque[Event] = deque()
        for event in reversed(events):
            if event.seq <= cursor:
                break
            fresh.appendleft(event)
        return list(fresh)

    def version(self) -> int:
        return self._ring.version

    async def wait(self, version: int, timeout_s: float) -> bool:
        if self._ring.version > version or self._tail.closing:
            return True
        return await _sleep(self._ring.sleepers, timeout_s)

    def turn(self) -> int:
        return self._ring.turn

    async def wait_turn(self, turn: int, timeout_s: float) -> bool:
        if self._ring.turn > turn or self._tail.closing:
            return True
        return await _sleep(self._ring.waiters, timeout_s)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._ring.readers -= 1
            self._tail.forget(self._run_id)


class MemoryTail:
    """All rings of a process."""

    def __init__(self) -> None:
        self._rings: dict[str, _Ring] = {}
        self._closing = False

    @property
    def closing(self) -> bool:
        return self._closing

    def tell(self, events: Iterable[Event], *, expected: bool = False) -> None:
        ring: _Ring | None = None
        for event in events:
            if ring is None:
                ring = self._ring_for(event, expected=expected)
                if ring is None:
                    return
            ring.add(event)
        if ring is not None:
            ring.rouse(turned=event.terminal)
            if event.terminal:
                self.forget(event.run_id)

    def _ring_for(self, event: Event, *, expected: bool) -> _Ring | None:
        """A run that only waits needs no ring until somebody watches it, or is about to."""
        ring = self._rings.get(event.run_id)
        if ring is None and (event.seq > 1 or expected) and not event.terminal:
            ring = self._rings[event.run_id] = _Ring()
        return ring

    def kept(self, run_id: str, seq: int) -> None:
        ring = self._rings.get(run_id)
        if ring is not None:
            ring.kept = max(ring.kept, seq)
            ring.trim()
            if ring.missed:  # somebody looked for what was told but not yet in the log
                ring.missed = False
                ring.rouse(turned=False)

    def watch(self, run_id: str) -> MemoryWatch:
        ring = self._rings.setdefault(run_id, _Ring())
        return MemoryWatch(self, run_id, ring)

    def watched(self) -> dict[str, int]:
        return {run_id: ring.last for run_id, ring in self._rings.items() if ring.readers}

    def nudge(self, run_id: str, seq_last: int) -> None:
        ring = self._rings.get(run_id)
        if ring is not None:
            if seq_last > ring.last:  # what it holds ends too early to say that nothing follows
                ring.events.clear()
                ring.bytes = 0
            ring.rouse(turned=True)

    def close_streams(self) -> None:
        self._closing = True
        for ring in self._rings.values():
            ring.rouse(turned=True)

    def forget(self, run_id: str) -> None:
        """Drop a ring that has no reader and nothing to come."""
        ring = self._rings.get(run_id)
        if ring is not None and ring.readers == 0 and (ring.ended or not ring.events):
            del self._rings[run_id]
