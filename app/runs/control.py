"""Control: stopping runs. The wish is durable before it is answered; then the executor is told."""

from __future__ import annotations

from functools import partial

from app.domain.outcome import ABORT_CODES
from app.errors import StoreBusy
from app.faults import Point, hit
from app.runs.executor import Executor, Stop, Surroundings
from app.store.contract import StepUnsettled, StoreClosed
from app.store.transaction.abort import Aborted, Wish, abort_run, abort_session

BY_REQUEST = ABORT_CODES[0]


class RunControl:
    """Aborts runs and sessions of the caller."""

    def __init__(self, around: Surroundings, executor: Executor) -> None:
        self._around = around
        self._executor = executor

    async def abort(self, run_id: str, principal: str, reason: str | None) -> Aborted:
        """Withdraw a queued run, ask an executing one to stop, leave an ended one. Raises RunNotFound, StoreBusy."""
        around = self._around
        wish = Wish(principal, BY_REQUEST, reason, around.clock.now_ms())
        step = partial(abort_run, run_id=run_id, wish=wish, ids=around.ids)
        try:
            return await around.store.write(step, self._signal, patience_s=self._patience_s)
        except (StepUnsettled, StoreClosed):
            raise _busy() from None

    async def abort_session(self, key: str, principal: str, reason: str | None) -> list[Aborted]:
        """Those that wait first, then the executing one, in one step. Raises SessionNotFound, StoreBusy."""
        around = self._around
        wish = Wish(principal, BY_REQUEST, reason, around.clock.now_ms())
        step = partial(abort_session, key=key, wish=wish, ids=around.ids)
        try:
            return await around.store.write(step, self._signal_all, patience_s=self._patience_s)
        except (StepUnsettled, StoreClosed):
            raise _busy() from None

    @property
    def _patience_s(self) -> float:
        return self._around.settings.limits.accept_wait_ms / 1000

    def _signal_all(self, done: list[Aborted]) -> None:
        for one in done:
            self._signal(one)

    def _signal(self, done: Aborted) -> None:
        """After the COMMIT, whether or not the caller still waits."""
        hit(Point.ABORT_COMMITTED)
        self._around.tail.tell(done.told)
        for run_id in done.signal:
            self._executor.stop(run_id, Stop.ABORT)


def _busy() -> StoreBusy:
    return StoreBusy("The store is busy; whether the abort was stored is unknown. Send it again, it may be repeated.")
