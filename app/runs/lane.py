"""Draining a lane: adopt it, execute its runs one after the other, leave it. Knows nothing of where it runs."""

from __future__ import annotations

from functools import partial

from app.faults import Point, hit
from app.runs.executor import Executor, Surroundings
from app.store.contract import StoreClosed
from app.store.transaction.lane import Taken, adopt_and_take
from app.store.transaction.wake import Wake


class LaneDrain:
    """What `lanes` calls for a woken lane."""

    def __init__(self, around: Surroundings, executor: Executor) -> None:
        self._around = around
        self._executor = executor

    async def drain(self, wake: Wake) -> None:
        """Until the lane is left. While the service drains, a lane that waits for its turn stays as it is."""
        hit(Point.DRAIN_FETCHED)
        if self._around.worker.draining:
            return
        step = partial(
            adopt_and_take,
            session_id=wake.session_id,
            generation=wake.generation,
            taker=self._around.worker.taker(),
        )
        try:
            following = await self._around.store.write(step, self._executor.tell_taken)
            while isinstance(following, Taken):
                following = await self._executor.execute(following.attempt)
        except StoreClosed:
            return
