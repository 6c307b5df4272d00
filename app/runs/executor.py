"""Executing an attempt: prepare, run the turn under its limits, settle. Every path ends in that one settle, once.

The exceptions are an attempt that lost its fence, which settles nothing, and one handed over while the service
drains.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial, reduce
from typing import Any

import structlog

from app.agent.loop_guard import LoopLimits
from app.agent.tool_calls import Toolbox
from app.agent.turn import TurnInput, run_turn
from app.clock import Clock, Ids
from app.domain.message import Message, TextPart, ToolCallPart, Usage
from app.domain.outcome import Outcome, aborted, failed, interrupted, timed_out
from app.domain.prompt import system_prompt
from app.domain.run import Attempt
from app.domain.step import TurnEnd
from app.domain.tool_call import CallState, OpenCall
from app.errors import SessionBusy
from app.events.contract import Tail
from app.faults import Point, hit
from app.lanes.contract import Lanes
from app.providers.contract import ProviderError
from app.providers.resolve import Providers
from app.runs.recorder import Recorder, Showing, lock_refused
from app.runs.worker import Worker
from app.settings import Settings
from app.store.contract import AbortRequested, ClaimLost, Fenced, LockUnusable, Store, StoreClosed, WriteLocks
from app.store.queries.transcript import history
from app.store.transaction.calls import open_calls
from app.store.transaction.lane import Left, Taken
from app.store.transaction.settle import Settled
from app.store.transaction.wake import Wake
from app.tools.contract import ToolOutput
from app.tools.process import kill_group
from app.tools.registry import ToolRegistry
from app.workspace.root import WorkspaceUnusable, make_workspace

STRAGGLERS_END_S = 1.0
"""How long the end of the process waits for what was left behind."""

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
    tools: ToolRegistry
    showing: Showing
    worker: Worker
    locks: WriteLocks


class Executor:
    """Runs attempts of this process and knows which are in hand."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._executions: dict[str, Execution] = {}
        self._stragglers: set[asyncio.Task[Any]] = set()

    @property
    def executing(self) -> int:
        """Attempts in hand."""
        return len(self._executions)

    @property
    def stragglers(self) -> int:
        """Turns and tools that did not stop in time and were left behind; nothing of theirs is recorded."""
        return len(self._stragglers)

    def stop(self, run_id: str, reason: Stop) -> None:
        """Ask an attempt to stop, if it is in hand here."""
        execution = self._executions.get(run_id)
        if execution is not None:
            execution.stop(reason)

    def fence_all(self) -> None:
        """Others may go on with what executes here: nothing more of it is told or recorded."""
        for execution in self._executions.values():
            execution.stop(Stop.FENCED)

    def let_all_go(self) -> None:
        """The drain is over: what still executes is handed over."""
        for execution in self._executions.values():
            execution.stop(Stop.LET_GO)

    async def execute(self, attempt: Attempt) -> Taken | Left:
        """One attempt from its take to its settle; returns the lane's next. Raises StoreClosed when the store goes."""
        around = self._around
        execution = self._in_hand(attempt)
        recorder = Recorder(
            attempt,
            around.store,
            around.tail,
            around.clock,
            around.ids,
            around.showing,
            around.locks,
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
            if self._executions.get(attempt.run_id) is execution:
                del self._executions[attempt.run_id]

    def _in_hand(self, attempt: Attempt) -> Execution:
        execution = self._executions.get(attempt.run_id)
        if execution is None or execution.attempt is not attempt:
            execution = self._executions[attempt.run_id] = Execution(attempt)
        return execution

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

    async def close(self) -> None:
        """The process ends: what was left behind is told once more to stop, and has a moment for it."""
        stragglers = set(self._stragglers)
        for task in stragglers:
            task.cancel()
        if stragglers:
            _, left = await asyncio.wait(stragglers, timeout=STRAGGLERS_END_S)
            if left:
                log.error("run.stragglers-left", count=len(left))

    def _leave_behind(self, turn: asyncio.Task[TurnEnd], attempt: Attempt) -> None:
        log.warning("run.turn-left-behind", run_id=attempt.run_id, attempt=attempt.attempt)
        self._adopt(turn)

    def _leave_tool_behind(self, recorder: Recorder, task: asyncio.Task[ToolOutput], call: ToolCallPart) -> None:
        log.warning("run.tool-left-behind", tool=call.name[:64], tool_call_id=call.tool_call_id)
        self._adopt(task)
        task.add_done_callback(lambda _: recorder.drop_late(call))

    def _adopt(self, task: asyncio.Task[Any]) -> None:
        task.cancel()
        self._stragglers.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._stragglers.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.info("run.straggler-ended", problem=type(problem).__name__)

    async def _turn(self, execution: Execution, recorder: Recorder) -> TurnEnd:
        """Prepare and run. Raises nothing but cancellation: not even an exit that foreign code asked for."""
        try:
            turn = await self._prepare(execution, recorder)
            recorder.usage = turn.usage
            return await run_turn(turn, recorder.report)
        except asyncio.CancelledError:
            raise
        except WorkspaceUnusable as problem:
            outcome = failed("workspace-unusable", str(problem))
        except (SessionBusy, LockUnusable) as problem:
            outcome = lock_refused(problem, execution.attempt.run_id)
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

    async def _prepare(self, execution: Execution, recorder: Recorder) -> TurnInput:
        around, attempt = self._around, execution.attempt
        settings = around.settings
        asked = attempt.input
        agent = settings.agent(attempt.agent)
        provider = await around.providers.resolve(asked.model)
        toolbox = await self._toolbox(execution, recorder)
        messages: list[Message] = []
        if attempt.next_entry > 1:
            async with recorder.transcript():
                read = partial(history, transcript_id=attempt.transcript_id)
                messages = await around.store.read(read, patience_s=None)
        opened = await self._left_open(attempt)
        made = _steps_made(messages) if attempt.has_input else []
        if not attempt.has_input:
            parts = tuple(TextPart(part["text"]) for part in asked.parts)
            messages.append(Message("user", asked.message_id, parts, source=asked.source))
        limits = settings.limits
        return TurnInput(
            provider=provider,
            idle_s=around.providers.idle_timeout_s(asked.model),
            system=system_prompt(agent.system_prompt if agent else "", asked.extra_system_prompt),
            history=tuple(messages),
            thinking=asked.thinking,
            reply_required=asked.reply_required,
            toolbox=toolbox,
            limits=LoopLimits(limits.tool_rounds, limits.tool_repeats, limits.cut_answers),
            result_chars=limits.tool_model_chars,
            opened=tuple(opened),
            steps=len(made),
            usage=reduce(Usage.plus, (message.usage or Usage() for message in made), Usage()),
        )

    async def _toolbox(self, execution: Execution, recorder: Recorder) -> Toolbox:
        around, attempt = self._around, execution.attempt
        settings, limits = around.settings, around.settings.limits
        agent = settings.agent(attempt.agent)
        tools = around.tools.offered
        workspace = agent.workspace if agent else settings.state_dir / "agents" / attempt.agent / "workspace"
        if tools and not workspace.is_dir():
            await asyncio.to_thread(make_workspace, workspace)
        return Toolbox(
            tools=tools,
            workspace=workspace,
            masker=around.showing.masker,
            clock=around.clock,
            ids=around.ids,
            parallel_max=limits.parallel_tools,
            arguments_bytes=limits.tool_arguments_bytes,
            kept_bytes=limits.tool_output_bytes,
            shown_chars=limits.tool_event_chars,
            drain_s=settings.tools.abort_drain_ms / 1000,
            stopping=lambda: execution.reason is not None,
            left_behind=partial(self._leave_tool_behind, recorder),
        )

    async def _left_open(self, attempt: Attempt) -> list[OpenCall]:
        """Calls of an earlier attempt without results in the transcript; what still runs of them is killed first."""
        if attempt.attempt == 1:
            return []
        query = partial(open_calls, run_id=attempt.run_id, transcript_id=attempt.transcript_id)
        opened = await self._around.store.read(query, patience_s=None)
        for item in opened:
            if item.state is CallState.INTENDED and item.group is not None:
                await kill_group(item.group)
        return opened

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
            return await self._settle(execution, recorder, end)
        except (Fenced, StoreClosed):
            raise
        except Exception:
            run_id = execution.attempt.run_id
            log.exception("run.settle-failed", run_id=run_id)
            text = f"The service could not keep the run's end; its log has the details under run {run_id}."
            return await self._settle(execution, recorder, TurnEnd(failed("internal", text), None, end.usage))

    async def _settle(self, execution: Execution, recorder: Recorder, end: TurnEnd) -> Taken | Left:
        settled = await recorder.settle(
            end, self._around.worker.taker, self._announce, lambda: execution.reason is not None
        )
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
        """After the COMMIT of a take: tell what it made known. Events of several runs may be among them.

        The run can be asked to stop from here on: an abort may be the next COMMIT.
        """
        if isinstance(taken, Taken):
            self._in_hand(taken.attempt)
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


def _steps_made(messages: list[Message]) -> list[Message]:
    """What the run's earlier attempts have settled: the answers with calls behind its input."""
    made: list[Message] = []
    for message in reversed(messages):
        if message.role == "user":
            break
        if message.tool_calls:
            made.append(message)
    return made
