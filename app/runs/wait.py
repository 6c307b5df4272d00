"""Waiting for a run's end: look, then listen, then look again. A wait never affects the run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from app.clock import Clock
from app.domain.run import RunRecord
from app.events.contract import Tail
from app.store.contract import Store
from app.store.queries.runs import record


@dataclass(frozen=True, slots=True)
class Waited:
    """The record as it stood last, and why the wait ended before the run when it did."""

    record: RunRecord
    draining: bool


class RunWaiter:
    """Answers waiters of this process; the tail tells it when to look, every look is at the store."""

    def __init__(self, store: Store, tail: Tail, clock: Clock) -> None:
        self._store = store
        self._tail = tail
        self._clock = clock

    async def wait(self, run_id: str, principal: str, timeout_s: float) -> Waited:
        """Until the run has ended, the time is over, or the service closes. Raises RunNotFound, RunDeleted."""
        deadline_s = self._clock.steady_s() + timeout_s
        watch = self._tail.watch(run_id)
        try:
            while True:
                turn = watch.turn()
                found = await self._store.read(partial(record, run_id=run_id, principal=principal))
                if found.status.terminal or self._tail.closing:
                    return Waited(found, draining=not found.status.terminal)
                left_s = deadline_s - self._clock.steady_s()
                if left_s <= 0 or not await watch.wait_turn(turn, left_s):
                    return Waited(found, draining=False)
        finally:
            watch.close()
