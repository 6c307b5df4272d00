"""Executing an attempt: prepare, run the turn under its limits, settle. Every path ends in that one settle, once.

The exceptions are an attempt that lost its fence, which settles nothing, and one handed over while the service
drains.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

import structlog

from app.agent.turn import TurnInput, run_turn
from app.clock import Clock, Ids
from app.domain.message import Message, TextPart, Usage
from app.domain.outcome import Outcome, aborted, failed, interrupted, timed_out
from app.domain.prompt import system_prompt
from app.domain.run import Attempt
from app.domain.step import TurnEnd
from app.events.contract import Tail
from app.faults import Point, hit
from app.lanes.contract import Lanes
from app.providers.contract import ProviderError
from app.providers.resolve import Providers
from app.runs.recorder import Recorder
from app.runs.worker import Worker
from app.settings import Settings
from app.store.contract import AbortRequested, ClaimLost, Fenced, Store, StoreClosed
from app.store.queries.transcript import history
from app.store.transaction.lane import Left, Taken
from app.store.transaction.settle import Settled
from app.store.transaction.wake import Wake

log = structlog.get_logger("laneway.runs")


class Stop(Enum):
    """Why an attempt stops before its turn has ended by itself."""

    ABORT = auto()
    DEADLINE = auto()
    FENCED = auto()
    LET_GO = auto()


class Execution:
    """An attempt in hand; others reach it only to ask it to stop. The first reason counts, but a fence above all."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.reason: Stop | None = None
        self.asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stop(self, reason: Stop) -> None:
        if self.reason is None or reason is Stop.FENCED:
            self.reason = reason
        if not self.asked.done():
            self.asked.set_result(None)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What execution works with, built once by the assembly."""

    settings: Settings
    store: Store
    tail: Tail
    lanes: Lanes
    clock: Clock
    ids: Ids
    providers: Providers
    worker: Worker


class Executor:
    """Runs attempts of this process and knows which are in hand."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._executions: dict[str, Execution] = {}
        self._stragglers: set[asyncio.Task[TurnEnd]] = set()

    @property
    def executing(self) -> int:
        """Attempts in hand."""
        return len(self._executions)

    @property
    def stragglers(self) -> int:
        """Turns that did not stop in time and were left behind; nothing of theirs is recorded."""
        return len(self._stragglers)

    def stop(self, run_id: str, reason: Stop) -> None:
        """Ask an attempt to stop, if it is in hand here."""
        execution = self._executions.get(run_id)
        if execution is not None:
            execution.stop(reason)

    def let_all_go(self) -> None:
        """The drain is over: what still executes is handed over."""
        for execution in self._executions.values():
            execution.stop(Stop.LET_GO)

    async def execute(self, attempt: Attempt) -> Taken | Left:
        """One attempt from its take to its settle; returns the lane's next. Raises StoreClosed when the store goes."""
        around = self._around
        execution = Execution(attempt)
        self._executions[attempt.run_id] = execution
        recorder = Recorder(
            attempt,
            around.store,
            around.tail,
            around.clock,
            around.ids,
            around.settings.limits.event_bytes,
            partial(execution.stop, Stop.FENCED),
        )
        try:
            hit(Point.TAKEN)
            end = await self._work(execution, recorder)
            return await self._finish(execution, recorder, end)
        except Fenced:
            log.info("run.fenced", run_id=attempt.run_id, attempt=attempt.attempt)
            return Left("fenced")
        finally:
            recorder.close()
            del self._executions[attempt.run_id]

    async def _work(self, execution: Execution, recorder: Recorder) -> TurnEnd | None:
        """The turn under its limit; how it ended by itself, or None when it was stopped (`execution.reason`)."""
        attempt = execution.attempt
        limit_s = attempt.input.timeout_seconds
        left_s = max(0.0, limit_s - attempt.active_ms / 1000) if limit_s else None
        turn = asyncio.create_task(self._turn(execution, recorder), name=f"turn {attempt.run_id}")
        ends: set[asyncio.Future[Any]] = {turn, execution.asked}
        try:
            done, _ = await asyncio.wait(ends, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                execution.stop(Stop.DEADLINE)
            if not turn.done():
                turn.cancel()
                await asyncio.wait({turn}, timeout=self._around.settings.tools.abort_drain_ms / 1000)
        finally:
            if not turn.done():
                self._leave_behind(turn, attempt)
        if execution.reason is Stop.ABORT:
            hit(Point.ABORT_ANSWERED)
        if execution.reason is not None:
            return None
        hit(Point.RESPONSE_COMPLETE)
        if turn.cancelled():
            return TurnEnd(failed("internal", "The run was cancelled from inside."), None, Usage())
        return turn.result()

    def _leave_behind(self, turn: asyncio.Task[TurnEnd], attempt: Attempt) -> None:
        turn.cancel()
        log.warning("run.turn-left-behind", run_id=attempt.run_id, attempt=attempt.attempt)
        self._stragglers.add(turn)
        turn.add_done_callback(self._stragglers.discard)

    async def _turn(self, execution: Execution, recorder: Recorder) -> TurnEnd:
        """Prepare and run. Raises nothing but cancellation: not even an exit that foreign code asked for."""
        try:
            turn = await self._prepare(execution.attempt)
            return await run_turn(turn, recorder.report, self._around.ids)
        except asyncio.CancelledError:
            raise
        except ProviderError as problem:
            outcome = failed(problem.code, str(problem), retryable=problem.retryable)
        except Fenced:
            execution.stop(Stop.FENCED)
            outcome = interrupted("Another attempt goes on with this run.")
        except (AbortRequested, ClaimLost):
            outcome = aborted("cancelled")
        except StoreClosed:
            execution.stop(Stop.LET_GO)
            outcome = interrupted("The store was closed.")
        except BaseException:
            run_id = execution.attempt.run_id
            log.exception("run.failed", run_id=run_id)
            outcome = failed("internal", f"The service failed; its log has the details under run {run_id}.")
        return TurnEnd(outcome, None, Usage())

    async def _prepare(self, attempt: Attempt) -> TurnInput:
        around = self._around
        asked = attempt.input
        agent = around.settings.agent(attempt.agent)
        provider = await around.providers.resolve(asked.model)
        messages: list[Message] = []
        if attempt.next_entry > 1:
            messages = await around.store.read(partial(history, transcript_id=attempt.transcript_id))
        if not attempt.has_input:
            parts = tuple(TextPart(part["text"]) for part in asked.parts)
            messages.append(Message("user", asked.message_id, parts, source=asked.source))
        return TurnInput(
            provider=provider,
            idle_s=around.providers.idle_timeout_s(asked.model),
            system=system_prompt(agent.system_prompt if agent else "", asked.extra_system_prompt),
            history=tuple(messages),
            thinking=asked.thinking,
            reply_required=asked.reply_required,
        )

    async def _finish(self, execution: Execution, recorder: Recorder, end: TurnEnd | None) -> Taken | Left:
        if execution.reason is Stop.FENCED:
            raise Fenced
        if execution.reason is Stop.LET_GO and self._around.settings.recovery.resume:
            try:
                await recorder.let_go(self._around.worker.taker(), self._handed_over)
            except AbortRequested:
                execution.reason = Stop.ABORT
            else:
                return Left("draining")
        if end is None:
            end = TurnEnd(_stopped(execution), None, recorder.usage)
        try:
            return await self._settle(recorder, end)
        except (Fenced, StoreClosed):
            raise
        except Exception:
            run_id = execution.attempt.run_id
            log.exception("run.settle-failed", run_id=run_id)
            text = f"The service could not keep the run's end; its log has the details under run {run_id}."
            return await self._settle(recorder, TurnEnd(failed("internal", text), None, end.usage))

    async def _settle(self, recorder: Recorder, end: TurnEnd) -> Taken | Left:
        settled = await recorder.settle(end, self._around.worker.taker(), self._announce)
        return settled.next

    def _announce(self, settled: Settled) -> None:
        """After the COMMIT of a settle: tell, then give the next their turn."""
        hit(Point.SETTLE_COMMITTED)
        self._around.tail.tell(settled.told)
        hit(Point.SETTLE_TOLD)
        self.tell_taken(settled.next)
        hit(Point.SLOT_FREED)
        self._around.lanes.wake(settled.wakes)

    def tell_taken(self, taken: Taken | Left) -> None:
        """After the COMMIT of a take: tell what it made known. Events of several runs may be among them."""
        for event in taken.told:
            self._around.tail.tell((event,))
        self._around.lanes.wake(taken.wakes)

    def _handed_over(self, wakes: tuple[Wake, ...]) -> None:
        hit(Point.LET_GO)
        self._around.lanes.wake(wakes)


def _stopped(execution: Execution) -> Outcome:
    """What a stopped attempt ends as; a committed abort overrules it in the settle itself."""
    if execution.reason is Stop.DEADLINE:
        return timed_out(execution.attempt.input.timeout_seconds)
    if execution.reason is Stop.LET_GO:
        return interrupted("The service stopped while the run was executing, and `recovery.resume` is off.")
    return aborted("cancelled")
