"""Recovery: at start, and each second, lanes that nobody drains are put back and lost wakes repeated."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from app.errors import StoreUnusable
from app.faults import Point, hit
from app.runs.executor import Surroundings
from app.runs.upkeep import DAY_MS, Upkeep
from app.runs.worker import is_gone
from app.store.contract import StepUnsettled, StoreClosed
from app.store.transaction import sweep
from app.store.transaction.calls import owned_groups
from app.store.transaction.sweep import Swept
from app.store.transaction.worker import LEASE_MS, Incarnation, register_worker, retire_worker
from app.tools.process import kill_group

SWEEP_PERIOD_S = 1.0
WAKE_AGAIN_AFTER_MS = 5000
WAKES_PER_PASS = 1000
BEGIN_WITHIN_S = 10.0
OTHERS_SLACK_S = 1.0
OTHERS_POLL_S = 0.5
DEAD_WORKERS_KEPT_MS = 7 * DAY_MS

log = structlog.get_logger("laneway.recovery")


class Sweeper:
    """Owns the repair of queue state. The same code at start and while running."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._upkeep = Upkeep(around)

    async def begin(self) -> None:
        """At start: this incarnation is registered, what dead ones left is put back, all woken lanes are woken.

        Raises StoreUnusable, also when another process executes on the same database.
        """
        around = self._around
        others = await self._register()
        until_s = around.clock.steady_s() + LEASE_MS / 1000 + OTHERS_SLACK_S
        while others:
            names = ", ".join(f"process {other.pid} on {other.host}" for other in others)
            if around.clock.steady_s() >= until_s:
                raise StoreUnusable(f"Another Laneway works on this database: {names}. Stop it first.")
            log.info("start.waits-for-lease", of=names)
            await asyncio.sleep(OTHERS_POLL_S)  # its lease is over by the clock alone
            others = await self._register()
        hit(Point.SWEEP_BETWEEN)
        for group in await around.store.read(owned_groups):
            await kill_group(group)
        await self._put_back_dead()
        await self._wake(before_ms=around.clock.now_ms() + DAY_MS, limit=1_000_000)
        around.lanes.wake(await around.store.write(partial(sweep.sweep_waiting, taker=around.worker.taker())))

    async def _register(self) -> list[Incarnation]:
        """Begin, or those that may still live. The lock on the state directory proves that nobody else has its file."""
        around = self._around
        step = partial(
            register_worker,
            me=around.worker.incarnation(),
            now_ms=around.clock.now_ms(),
            is_gone=is_gone if around.store.shared else lambda _: True,
            keep_dead_ms=DEAD_WORKERS_KEPT_MS,
        )
        try:
            return await around.store.write(step, patience_s=BEGIN_WITHIN_S)
        except StepUnsettled:
            raise StoreUnusable("The database cannot be written; the lines above say why.") from None

    async def end(self) -> None:
        """The process goes by itself."""
        around = self._around
        await around.store.write(partial(retire_worker, worker_id=around.worker.id, now_ms=around.clock.now_ms()))

    async def sweep_until_cancelled(self) -> None:
        """Owned by the service; ends by cancellation."""
        while True:
            await asyncio.sleep(SWEEP_PERIOD_S)
            try:
                await self.sweep_once()
                await self._upkeep.work()
            except StoreClosed:
                return
            except Exception:
                log.exception("sweep.failed")

    async def sweep_once(self) -> None:
        """One pass: lanes of the dead, abandoned lanes, lost wakes, free slots."""
        around = self._around
        if around.worker.draining:
            return
        await self._put_back_dead()
        await self._put_back_abandoned()
        await self._wake(around.clock.now_ms() - WAKE_AGAIN_AFTER_MS, WAKES_PER_PASS)
        wakes = await around.store.write(partial(sweep.sweep_waiting, taker=around.worker.taker()))
        around.lanes.wake(wakes)

    async def _put_back_dead(self) -> None:
        resume = self._around.settings.recovery.resume
        more = True
        while more:
            step = partial(sweep.sweep_dead, taker=self._around.worker.taker(), resume=resume)
            more = (await self._around.store.write(step, self._announce)).more

    async def _put_back_abandoned(self) -> None:
        around = self._around
        held = await around.store.read(partial(sweep.held_lanes, worker_id=around.worker.id))
        # The read may be old by now; under its lock a lane is put back only if its token still stands.
        lost = [lane for lane in held if not around.lanes.drains(lane.session_id)]
        if lost:
            log.warning("sweep.abandoned-lanes", count=len(lost))
            step = partial(
                sweep.sweep_abandoned,
                lanes=lost,
                taker=around.worker.taker(),
                resume=around.settings.recovery.resume,
            )
            await around.store.write(step, self._announce)

    async def _wake(self, before_ms: int, limit: int) -> None:
        around = self._around
        wakes = await around.store.read(partial(sweep.overdue_wakes, before_ms=before_ms, limit=limit))
        around.lanes.wake(wake for wake in wakes if not around.lanes.drains(wake.session_id))

    def _announce(self, swept: Swept) -> None:
        for event in swept.told:
            self._around.tail.tell((event,))
        self._around.lanes.wake(swept.wakes)
