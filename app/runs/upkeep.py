"""Upkeep: what has ended is folded, and what was kept long enough goes; in small steps, while nobody waits for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from app.domain.event import ENVELOPE_BYTES
from app.runs.executor import Surroundings
from app.store.transaction.fold import FoldStep, fold_some
from app.store.transaction.remove import remove_runs
from app.store.transaction.upkeep import bound_audit

FOLD_AFTER_MS = 2_000
"""Readers of a run that has just ended are still served from its tail."""
WORK_S = 0.1
"""Of each second: all of it can be done later."""
QUEUED_MAX = 4
"""With more steps than that in the store's queue, upkeep takes one of its own and leaves the rest for later."""
LOOK_PERIOD_S = 60.0
"""How often it is looked whether something was kept long enough."""
DAY_MS = 24 * 3600 * 1000


class Upkeep:
    """Called each second by the sweep."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._next_look_s = around.clock.steady_s()
        self._folded = FoldStep(more=False)

    async def work(self) -> None:
        """Some of what is to be done. Raises what the store raises."""
        clock = self._around.clock
        await self._repeat(self._fold)
        if clock.steady_s() < self._next_look_s:
            return
        removed = not self._around.settings.retention.runs_days or await self._repeat(self._remove)
        bounded = await self._repeat(self._bound_ledger)
        if removed and bounded:
            self._next_look_s = clock.steady_s() + LOOK_PERIOD_S

    async def _repeat(self, step: Callable[[], Awaitable[bool]]) -> bool:
        """Take a step, and others while there is more to do. False: WORK_S was over, or others want the store."""
        around = self._around
        until_s = around.clock.steady_s() + WORK_S
        while await step():
            if around.clock.steady_s() >= until_s or around.store.stats().queued_steps > QUEUED_MAX:
                return False
        return True

    async def _fold(self) -> bool:
        around = self._around
        now_ms = around.clock.now_ms()
        self._folded = await around.store.write(
            partial(
                fold_some,
                before_ms=now_ms - FOLD_AFTER_MS,
                now_ms=now_ms,
                bytes_max=around.settings.limits.event_bytes - ENVELOPE_BYTES,
                events_max=around.settings.retention.events_per_run,
                last=self._folded,
            )
        )
        return self._folded.more

    async def _remove(self) -> bool:
        kept_ms = self._around.settings.retention.runs_days * DAY_MS
        return await self._around.store.write(partial(remove_runs, before_ms=self._around.clock.now_ms() - kept_ms))

    async def _bound_ledger(self) -> bool:
        limits = self._around.settings.limits
        before_ms = self._around.clock.now_ms() - limits.audit_days * DAY_MS
        return await self._around.store.write(partial(bound_audit, before_ms=before_ms, rows_max=limits.audit_rows))
