"""The reading half of the event log: replay joined to the live tail, with no gap, no repeat, and an end.

A reader takes the tail from its cursor before the log is read, and gets an event only when it comes next. Whatever
the tail cannot tell is read from the log, in pages, each a short read of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

import structlog

from app.domain.event import Event
from app.events.contract import Tail, Watch
from app.store.contract import Store, StoreClosed
from app.store.queries.events import is_whole, moved, next_page

POLL_S = 2.0
"""How often what no tail told is looked for in the log: one query for all runs watched."""

log = structlog.get_logger("laneway.events")


class Quiet(Enum):
    """Why a reader got nothing."""

    SILENCE = auto()
    CLOSING = auto()
    LOST = auto()


@dataclass(slots=True)
class Place:
    """Where a reader stands."""

    cursor: int


class EventReader:
    """Follows runs for streams and waiters of one process."""

    def __init__(self, store: Store, tail: Tail) -> None:
        self._store = store
        self._tail = tail

    def watch(self, run_id: str) -> Watch:
        """Take a run's tail; close it when done."""
        return self._tail.watch(run_id)

    async def follow(
        self, run_id: str, watch: Watch, place: Place, silence_s: float
    ) -> AsyncIterator[list[Event] | Quiet]:
        """Events after `place.cursor`, joined as they are ready, until the terminal one.

        Yields Quiet.SILENCE after `silence_s` without an event, and once, then ends: Quiet.CLOSING when the process
        closes its streams, Quiet.LOST when what comes next is not kept any more. `place.cursor` moves with the events.
        """
        looked = -1  # the version at which the log was read to its end
        page: list[Event] | None
        while True:
            version = watch.version()
            batch = watch.after(place.cursor)
            if batch is None or (batch and not batch[0].follows(place.cursor)):
                page = [] if looked == version else await self._page(run_id, place.cursor)
                if page is None or (page and not page[0].follows(place.cursor)):
                    yield Quiet.LOST
                    return
                batch = page
                looked = version if is_whole(batch) else -1
            ready = _contiguous(batch, place.cursor)
            page = None  # a reader that waits must not hold what it has read
            if ready:
                place.cursor, is_last = ready[-1].seq, ready[-1].terminal
                yield ready
                if is_last:
                    return
                continue
            if self._tail.closing:
                yield Quiet.CLOSING
                return
            if not await watch.wait(version, silence_s):
                yield Quiet.SILENCE

    async def _page(self, run_id: str, cursor: int) -> list[Event] | None:
        return await self._store.read(partial(next_page, run_id=run_id, cursor=cursor))

    async def poll_until_cancelled(self) -> None:
        """Find what no tail told. Owned by the service; ends by cancellation."""
        while True:
            await asyncio.sleep(POLL_S)
            watched = self._tail.watched()
            ids = list(watched)
            for start in range(0, len(ids), 500):
                try:
                    rows = await self._store.read(partial(moved, run_ids=ids[start : start + 500]))
                except StoreClosed:
                    return
                except Exception:
                    log.exception("events.poll-failed")
                    break
                for run_id, seq_last, ended in rows:
                    if seq_last > watched[run_id] or (ended and watched[run_id] == 0):
                        self._tail.nudge(run_id, seq_last)


def _contiguous(batch: list[Event], cursor: int) -> list[Event]:
    """The beginning of `batch` that comes next after `cursor`, one after the other (rule RD-2)."""
    ready: list[Event] = []
    for event in batch:
        if event.seq <= cursor:
            continue
        if not event.follows(cursor):
            break
        ready.append(event)
        cursor = event.seq
    return ready
