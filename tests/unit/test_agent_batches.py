"""The pairing rule over random batches: one result for each call, whatever fails, is stopped, or never runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.agent.tool_calls import Batch, Toolbox
from app.clock import SystemClock, UuidIds
from app.domain.masking import Masker
from app.domain.message import ToolCallPart
from app.domain.step import CallsEnded, CallShown, CallsIntended, Step
from app.domain.tool_call import CALL_CODES, CallResult
from app.store.contract import AbortRequested
from app.tools.contract import Text, Tool, ToolBlocked, ToolContext, ToolFailed, ToolOutput, Work

WAYS = ("return", "error", "fail", "raise", "exit", "interrupt", "cancel", "blocked", "show")
SECONDS = (0.0, 0.001, 0.004, 0.01)


@dataclass
class Watched:
    """A tool that does as its arguments say and counts who is inside. `deaf_s`: it ignores a cancellation so long."""

    name: str
    sequential: bool = False
    deaf_s: float = 0.0
    timeout_s: float = 5.0
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    inside: int = 0
    most_inside: int = 0

    async def prepare(self, args: dict[str, Any], context: ToolContext) -> Work:
        if args["how"] == "blocked":
            raise ToolBlocked("not allowed")
        return Work(lambda: self._run(args, context), self.timeout_s)

    async def _run(self, args: dict[str, Any], context: ToolContext) -> ToolOutput:
        self.begun.append(context.call_id)
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        try:
            await self._wait(args["seconds"])
            how = args["how"]
            if how == "show":
                context.update("line\n")
                await asyncio.sleep(0.001)
            if how == "fail":
                raise ToolFailed("it failed")
            if how == "raise":
                raise ValueError("inside")
            if how == "exit":
                raise SystemExit(3)
            if how == "interrupt":
                raise KeyboardInterrupt
            if how == "cancel":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            return ToolOutput((Text(args["marker"]),), is_error=how == "error")
        finally:
            self.inside -= 1

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            if not self.deaf_s:
                raise
            await asyncio.sleep(self.deaf_s)


class Log:
    """Takes reports as the recorder does: one at a time, each in its time; and holds the protocol against them."""

    def __init__(self, *, refuse_after: int = -1) -> None:
        self.steps: list[Step] = []
        self.intended: list[str] = []
        self.ended: dict[str, CallResult] = {}
        self._refuse_after = refuse_after
        self._lock = asyncio.Lock()

    async def report(self, step: Step) -> None:
        async with self._lock:
            await asyncio.sleep(0)
            self.steps.append(step)
            if isinstance(step, CallsIntended):
                if self._refuse_after == len(self.intended):
                    raise AbortRequested
                self.intended += [call.tool_call_id for call in step.calls]
            elif isinstance(step, CallsEnded):
                for answer in step.answers:
                    call_id = answer.call.tool_call_id
                    assert call_id not in self.ended, "a call ends twice"
                    assert answer.started == (call_id in self.intended), "ended as if it had (not) begun"
                    self.ended[call_id] = answer.result
            elif isinstance(step, CallShown):
                call_id = step.call.tool_call_id
                assert call_id in self.intended and call_id not in self.ended, "shown before its start or after its end"


def toolbox(tools: list[Watched], parallel: int = 8, *, drain_s: float = 1.0, left: list[Any] | None = None) -> Toolbox:
    named: dict[str, Tool] = {tool.name: tool for tool in tools}
    return Toolbox(
        tools=named,
        workspace=Path(),
        masker=Masker(()),
        clock=SystemClock(),
        ids=UuidIds(),
        parallel_max=parallel,
        arguments_bytes=10_000,
        kept_bytes=10_000,
        shown_chars=1_000,
        drain_s=drain_s,
        stopping=lambda: False,
        left_behind=lambda task, call: (left if left is not None else []).append((task, call)),
    )


def call(number: int, name: str = "side", how: str = "return", seconds: float = 0.0, args: str | None = None) -> Any:
    asked = {"how": how, "seconds": seconds, "marker": f"m{number}"}
    return ToolCallPart(f"c{number}", name, orjson.dumps(asked).decode() if args is None else args)


@st.composite
def batches(draw: st.DrawFn) -> list[ToolCallPart]:
    calls = []
    for number in range(draw(st.integers(1, 12))):
        name = draw(st.sampled_from(("side", "side", "side", "order", "nosuch")))
        broken = draw(st.sampled_from((None,) * 8 + ("", "{", "[1]", "null", '{"how": "ret')))
        calls.append(call(number, name, draw(st.sampled_from(WAYS)), draw(st.sampled_from(SECONDS)), broken))
    return calls


async def run(batch: Batch, calls: list[ToolCallPart], stop_after_s: float | None) -> BaseException | None:
    """Run a batch as a turn does; how it ended if not by itself."""
    task = asyncio.create_task(batch.run(calls))
    if stop_after_s is not None:
        await asyncio.sleep(stop_after_s)
        task.cancel()
    await asyncio.wait({task}, timeout=30)
    assert task.done(), "the batch hangs"
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception()


@given(calls=batches(), parallel=st.integers(1, 4), stop=st.sampled_from((None, None, 0.0, 0.001, 0.003, 0.006)))
@settings(max_examples=250, deadline=None)
def test_every_call_gets_one_result_whatever_happens(
    calls: list[ToolCallPart], parallel: int, stop: float | None
) -> None:
    side, order = Watched("side"), Watched("order", sequential=True)

    async def one() -> None:
        log = Log()
        batch = Batch("m", toolbox([side, order], parallel), log.report)
        problem = await run(batch, calls, stop)
        ids = [item.tool_call_id for item in calls]
        assert side.inside == order.inside == 0, "a tool is still at work"
        assert len(asyncio.all_tasks()) == 1, "a task was left"
        assert [name for name in ids if name in log.intended] == log.intended, "started out of order"
        assert set(side.begun + order.begun) <= set(log.intended), "started before it was durable"
        assert len(side.begun + order.begun) == len(set(side.begun + order.begun)), "started twice"
        assert batch.results == log.ended, "what the turn knows is what was kept"
        assert all(result.code in CALL_CODES for result in batch.results.values())
        if isinstance(problem, asyncio.CancelledError):
            assert stop is not None
        else:
            assert problem is None, problem
            assert list(batch.results.keys() - set(ids)) == [] and len(batch.results) == len(ids)
        in_order = parallel == 1 or any(item.name == "order" for item in calls)
        assert side.most_inside <= (1 if in_order else parallel)

    asyncio.run(one())


@given(calls=batches(), refuse_after=st.integers(0, 6))
@settings(max_examples=100, deadline=None)
def test_a_step_that_may_not_be_taken_stops_all_the_others(calls: list[ToolCallPart], refuse_after: int) -> None:
    """An abort that was committed first, or a fence: nothing begins after it, and nothing is left at work."""
    side, order = Watched("side"), Watched("order", sequential=True)

    async def one() -> None:
        log = Log(refuse_after=refuse_after)
        batch = Batch("m", toolbox([side, order], 3), log.report)
        problem = await run(batch, calls, None)
        assert side.inside == order.inside == 0 and len(asyncio.all_tasks()) == 1
        if problem is not None:
            assert isinstance(problem, AbortRequested)
            assert isinstance(log.steps[-1], CallsIntended | CallsEnded)
            assert set(side.begun + order.begun) <= set(log.intended)

    asyncio.run(one())


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("return", "completed", "m0"),
        ("error", "tool-error", "m0"),
        ("fail", "tool-error", "it failed"),
        ("raise", "tool-error", "log has the details"),
        ("exit", "tool-error", "log has the details"),
        ("interrupt", "tool-error", "log has the details"),
        ("cancel", "tool-error", "without a result"),
        ("blocked", "not-allowed", "not allowed"),
    ],
)
async def test_what_a_tool_does_is_told_as_what_it_is(how: str, code: str, words: str) -> None:
    log = Log()
    await Batch("m", toolbox([Watched("side")]), log.report).run([call(0, how=how)])
    result = log.ended["c0"]
    assert (result.code, result.is_error) == (code, code != "completed")
    assert words in result.text and "inside" not in result.text


@pytest.mark.parametrize(
    ("args", "words"),
    [('{"a": ', "not valid JSON"), ("[]", "no JSON object"), ('"x"', "no JSON object"), ("x" * 20_000, "20,000 bytes")],
)
async def test_arguments_are_never_guessed(args: str, words: str) -> None:
    log, tool = Log(), Watched("side")
    await Batch("m", toolbox([tool]), log.report).run([call(0, args=args), call(1)])
    assert log.ended["c0"].code == "invalid-arguments" and words in log.ended["c0"].text
    assert tool.begun == ["c1"], "the broken call does not run, the good one does"


async def test_a_tool_that_does_not_stop_is_left_behind_and_the_others_go_on() -> None:
    left: list[Any] = []
    deaf = Watched("side", deaf_s=0.3, timeout_s=0.02)
    log = Log()
    batch = Batch("m", toolbox([deaf, Watched("order", sequential=True)], drain_s=0.02, left=left), log.report)
    await batch.run([call(0, seconds=5), call(1, "order")])
    assert [log.ended[name].code for name in ("c0", "c1")] == ["timed-out", "completed"]
    [(task, late)] = left
    assert (deaf.inside, late.tool_call_id, task.done()) == (1, "c0", False)
    await asyncio.wait({task})
    assert log.ended["c0"].code == "timed-out", "what it returns later changes nothing"


async def test_work_that_was_finished_while_the_turn_was_stopped_is_kept() -> None:
    """The real result of a tool that returns in spite of the cancellation is not lost."""
    log, tool = Log(), Watched("side", deaf_s=0.01)
    batch = Batch("m", toolbox([tool]), log.report)
    problem = await run(batch, [call(0, seconds=5)], 0.02)
    assert isinstance(problem, asyncio.CancelledError)
    assert log.ended["c0"].text == "m0"
