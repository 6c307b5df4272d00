"""The calls of one answer: each gets exactly one result, whatever fails, is stopped, or never starts.

A call is checked, made durable as about to start, run under its deadline, and made durable with its result. Calls run
side by side, or one after the other when a tool among them wants that. Stopping is cancelling: tools are cancelled,
and what they still return until they have stopped is kept.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson
import structlog

from app.agent.tool_updates import Updates
from app.clock import Clock, Ids
from app.domain.masking import Masker
from app.domain.message import ToolCallPart
from app.domain.step import Answer, CallsEnded, CallsIntended, GroupOwned, Report
from app.domain.tool_call import CallResult
from app.faults import Point, hit
from app.tools.contract import (
    ArgumentsInvalid,
    Text,
    Tool,
    ToolBlocked,
    ToolFailed,
    ToolOutput,
    ToolTimedOut,
    Work,
)
from app.tools.sanitize import clean

PREPARE_WITHIN_S = 30.0
"""A check of arguments and policy looks at files at most."""

T = TypeVar("T")

log = structlog.get_logger("laneway.tools")


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools that one turn may call, where they work, and the bounds of their use.

    `stopping`: the run was told to stop, so nothing may begin, even if that was durable before. `left_behind` takes the
    task of a tool that did not stop in time, with its call: from then on it is the owner.
    """

    tools: Mapping[str, Tool]
    workspace: Path
    masker: Masker
    clock: Clock
    ids: Ids
    parallel_max: int
    arguments_bytes: int
    kept_bytes: int
    shown_chars: int
    drain_s: float
    stopping: Callable[[], bool]
    left_behind: Callable[[asyncio.Task[ToolOutput], ToolCallPart], None]


class CallContext:
    """What one call is given; see `tools.contract.ToolContext`."""

    def __init__(self, call: ToolCallPart, toolbox: Toolbox, report: Report, updates: Updates) -> None:
        self.call_id = call.tool_call_id
        self.workspace = toolbox.workspace
        self._report = report
        self._updates = updates

    def update(self, text: str) -> None:
        self._updates.add(text)

    async def own_group(self, group: str) -> None:
        await self._report(GroupOwned(self.call_id, group))


@dataclass(frozen=True, slots=True)
class _Ready:
    """A call that may start."""

    call: ToolCallPart
    work: Work
    updates: Updates


class Batch:
    """The calls of one message. `results` fills up; it is whole when `run` returns."""

    def __init__(self, message_id: str, toolbox: Toolbox, report: Report) -> None:
        self._message_id = message_id
        self._toolbox = toolbox
        self._report = report
        self.results: dict[str, CallResult] = {}

    async def run(self, calls: Sequence[ToolCallPart]) -> None:
        """Answer each of these calls. Raises cancellation once every tool has stopped, and what a report raises."""
        tools = self._toolbox.tools
        in_order = self._toolbox.parallel_max == 1 or any(
            tools[call.name].sequential for call in calls if call.name in tools
        )
        if in_order or len(calls) == 1:
            for call in calls:
                await self._in_order(call)
        else:
            await self._side_by_side(calls)

    async def refuse(self, calls: Sequence[ToolCallPart], code: str, text: str) -> None:
        """Answer them all without looking at them."""
        await self._end([Answer(call, self._refused(code, text), started=False) for call in calls])

    async def _in_order(self, call: ToolCallPart) -> None:
        prepared = await self._prepare(call)
        if isinstance(prepared, CallResult):
            await self._end([Answer(call, prepared, started=False)])
            return
        await self._intend([prepared])
        await self._work(prepared)

    async def _side_by_side(self, calls: Sequence[ToolCallPart]) -> None:
        """The first ones start in one step; each later one when a place is free, in the order of the calls."""
        prepared = [await self._prepare(call) for call in calls]
        refused = [
            Answer(call, result, started=False)
            for call, result in zip(calls, prepared, strict=True)
            if isinstance(result, CallResult)
        ]
        if refused:
            await self._end(refused)
        waiting = [ready for ready in prepared if isinstance(ready, _Ready)]
        first, waiting = waiting[: self._toolbox.parallel_max], waiting[self._toolbox.parallel_max :]
        if not first:
            return
        await self._intend(first)
        working = {asyncio.create_task(self._work(ready)) for ready in first}
        try:
            while working:
                done, working = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                starting, waiting = waiting[: len(done)], waiting[len(done) :]
                if starting:
                    await self._intend(starting)
                    working |= {asyncio.create_task(self._work(ready)) for ready in starting}
        finally:
            await _stop(working)

    async def _prepare(self, call: ToolCallPart) -> _Ready | CallResult:
        """Check the call; what is wrong with it is its result."""
        toolbox = self._toolbox
        tool = toolbox.tools.get(call.name)
        if tool is None:
            offered = ", ".join(sorted(toolbox.tools)) or "none"
            return self._refused("unknown-tool", f"There is no tool of this name. There are: {offered}.")
        try:
            args = _arguments(call.args, toolbox.arguments_bytes)
            updates = Updates(self._message_id, call, self._report, toolbox.masker, toolbox.shown_chars)
            context = CallContext(call, toolbox, self._report, updates)
            task = asyncio.create_task(self._whatever(tool.prepare(args, context), call))
            try:
                done, _ = await asyncio.wait({task}, timeout=PREPARE_WITHIN_S)
            finally:
                task.cancel()
            if not done or task.cancelled():
                return self._refused("tool-error", "The call could not be checked. It was not started.")
            return _Ready(call, task.result(), updates)
        except ArgumentsInvalid as problem:
            return self._refused("invalid-arguments", str(problem))
        except ToolBlocked as problem:
            return self._refused("not-allowed", str(problem))
        except ToolFailed as problem:
            return self._refused("tool-error", str(problem))

    async def _work(self, ready: _Ready) -> None:
        """Run one call that was intended, to its durable result. Stopped, it waits until the tool has stopped too."""
        hit(Point.CALL_INTENDED)
        if self._toolbox.stopping():
            raise asyncio.CancelledError
        begun_s = self._toolbox.clock.steady_s()
        task = asyncio.create_task(self._whatever(ready.work.run(), ready.call), name=f"tool {ready.call.name[:64]}")
        stopped: asyncio.CancelledError | None = None
        in_time = True
        try:
            in_time = await self._until_done(task, ready)
        except asyncio.CancelledError as stop:
            stopped = stop
            await _stop({task})
        finally:
            await ready.updates.stop()
        if stopped is not None and not _returned(task):
            raise stopped
        hit(Point.CALL_RETURNED)
        duration_ms = int((self._toolbox.clock.steady_s() - begun_s) * 1000)
        result = self._result(task, in_time, ready.work.timeout_s, duration_ms)
        await self._end([Answer(ready.call, result, started=True)])
        hit(Point.CALL_DONE)
        if stopped is not None:
            raise stopped

    async def _whatever(self, work: Awaitable[T], call: ToolCallPart) -> T:
        """Foreign code may raise anything, also what would end the process: it becomes a failure of the call."""
        try:
            return await work
        except (asyncio.CancelledError, ToolFailed):
            raise
        except BaseException:
            details = self._toolbox.masker.text(traceback.format_exc())
            log.error("tool.failed", tool=call.name[:64], tool_call_id=call.tool_call_id, traceback=details)
            raise ToolFailed("The tool itself failed; the service's log has the details.") from None

    async def _until_done(self, task: asyncio.Task[ToolOutput], ready: _Ready) -> bool:
        """Whether it ended by itself within its time; else it was told to stop, or left behind."""
        done, _ = await asyncio.wait({task}, timeout=ready.work.timeout_s)
        if done:
            return True
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=self._toolbox.drain_s)
        if not done:
            self._toolbox.left_behind(task, ready.call)
        return False

    def _result(self, task: asyncio.Task[ToolOutput], in_time: bool, limit_s: float, duration_ms: int) -> CallResult:
        if not in_time:
            text = f"The tool was stopped after its time limit of {limit_s:g} s. What it had done by then is not known."
            return self._made(ToolOutput((Text(text),), is_error=True), "timed-out", duration_ms)
        if task.cancelled():
            text = "The tool stopped itself without a result."
            return self._made(ToolOutput((Text(text),), is_error=True), "tool-error", duration_ms)
        problem = task.exception()
        if problem is not None:
            assert isinstance(problem, ToolFailed)
            code = "timed-out" if isinstance(problem, ToolTimedOut) else "tool-error"
            return self._made(ToolOutput((Text(str(problem)),), is_error=True), code, duration_ms)
        output = task.result()
        return self._made(output, "tool-error" if output.is_error else "completed", duration_ms)

    def _made(self, output: ToolOutput, code: str, duration_ms: int) -> CallResult:
        cleaned = clean(output, self._toolbox.masker, self._toolbox.kept_bytes)
        return CallResult(
            self._toolbox.ids.new(),
            cleaned.text,
            code,
            is_error=code != "completed",
            truncated=cleaned.truncated,
            duration_ms=duration_ms,
        )

    def _refused(self, code: str, text: str) -> CallResult:
        cleaned = clean(ToolOutput((Text(text),)), self._toolbox.masker, self._toolbox.kept_bytes)
        return CallResult(self._toolbox.ids.new(), cleaned.text, code, skipped=True)

    async def _intend(self, ready: Sequence[_Ready]) -> None:
        await self._report(CallsIntended(self._message_id, tuple(item.call for item in ready)))

    async def _end(self, answers: list[Answer]) -> None:
        await self._report(CallsEnded(self._message_id, tuple(answers)))
        self.results.update((answer.call.tool_call_id, answer.result) for answer in answers)


def _arguments(text: str, bytes_max: int) -> dict[str, Any]:
    """What the model wrote, as an object; never guessed, never repaired. Raises ArgumentsInvalid."""
    size = len(text.encode())
    if size > bytes_max:
        raise ArgumentsInvalid(f"The arguments are {size:,} bytes; allowed are {bytes_max:,}. The call was not run.")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as problem:
        raise ArgumentsInvalid(f"The arguments are not valid JSON ({problem.msg}). The call was not run.") from None
    if not isinstance(value, dict):
        raise ArgumentsInvalid("The arguments are no JSON object. The call was not run.")
    return value


def _returned(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _stop(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel them and outlast them, whatever comes meanwhile: the caller is on its way out."""
    for task in tasks:
        task.cancel()
    while any(not task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at, so that it is not reported as forgotten
