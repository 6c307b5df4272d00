"""A turn: one pass of the agent loop for a run. Model, tools, and again, until the model has answered.

It knows no store, lane, event log or HTTP: it gets its input, reports steps through one awaited function, and
returns how it ended. Stopping it is cancelling it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from app.agent.loop_guard import LoopGuard, LoopLimits
from app.agent.model_call import ModelIdle, Response, call_model
from app.agent.tool_calls import Batch, Toolbox
from app.domain.message import Message, ThinkingLevel, ToolCallPart, ToolResultPart, Usage
from app.domain.outcome import Outcome, completed, failed, silent
from app.domain.prompt import model_view
from app.domain.step import Answer, CallsEnded, MessageKept, ModelOpened, Report, StepClosed, TurnEnd
from app.domain.tool_call import CallState, OpenCall, closing
from app.faults import Point, hit
from app.providers.contract import ModelProvider, ModelRequest, ProviderError, ToolSpec
from app.tools.sanitize import model_text

CUT = (
    "This call was not run: the model's output limit cut the answer in which it stands. "
    "Make the call again, with shorter arguments or in several smaller calls."
)


@dataclass(frozen=True, slots=True)
class TurnInput:
    """All that a turn works from.

    `history` ends with the user's message, or with what its run has settled since; `opened` are the calls of its last
    message when their results do not stand behind it yet. `steps` were made by earlier attempts and cost `usage`.
    `result_chars`: how much of a tool's result the model gets.
    """

    provider: ModelProvider
    idle_s: float
    system: str
    history: tuple[Message, ...]
    thinking: ThinkingLevel | None
    reply_required: bool
    toolbox: Toolbox
    limits: LoopLimits
    result_chars: int
    opened: tuple[OpenCall, ...] = ()
    steps: int = 0
    usage: Usage = field(default_factory=Usage)


async def run_turn(turn: TurnInput, report: Report) -> TurnEnd:
    """Work until the model has answered or cannot. Raises what `report` raises; everything else is in the result."""
    return await _Turn(turn, report).run()


class _Turn:
    def __init__(self, turn: TurnInput, report: Report) -> None:
        self._turn = turn
        self._report = report
        self._ids = turn.toolbox.ids
        self._messages = list(turn.history)
        self._usage = turn.usage
        self._step = turn.steps
        self._guard = LoopGuard(turn.limits, turn.steps)
        self._specs = tuple(
            ToolSpec(tool.name, tool.description, dict(tool.parameters)) for tool in turn.toolbox.tools.values()
        )

    async def run(self) -> TurnEnd:
        if self._turn.opened:
            outcome = await self._go_on_with(self._turn.opened)
            if outcome is not None:
                return TurnEnd(outcome, None, self._usage)
        asked_again = False
        while True:
            self._step += 1
            answer = await self._ask(with_tools=not asked_again)
            if isinstance(answer, Outcome):
                return TurnEnd(answer, None, self._usage)
            if answer.tool_calls:
                outcome = await self._answer_calls(answer)
                if outcome is not None:
                    return TurnEnd(outcome, None, self._usage)
                asked_again = False
                continue
            assert answer.stop_reason is not None
            if answer.text.strip():
                return TurnEnd(completed(answer.stop_reason), answer, self._usage)
            if not self._turn.reply_required:
                return TurnEnd(silent(answer.stop_reason), None, self._usage)
            if asked_again:
                empty = failed("empty-reply", "The model gave an empty answer twice.", retryable=True)
                return TurnEnd(empty, None, self._usage)
            asked_again = True

    async def _ask(self, *, with_tools: bool) -> Message | Outcome:
        """One model request. An Outcome when it failed."""
        turn = self._turn
        message_id = self._ids.new()
        await self._report(ModelOpened(self._step, turn.provider.name, message_id))
        if turn.toolbox.stopping():
            raise asyncio.CancelledError
        request = ModelRequest(
            turn.system,
            tuple(_for_model(message, turn.result_chars) for message in model_view(self._messages)),
            tools=self._specs if with_tools else (),
            thinking=turn.thinking,
        )
        try:
            response = await call_model(turn.provider, request, message_id, self._report, turn.idle_s, self._ids)
        except ProviderError as problem:
            return failed(problem.code, str(problem), retryable=problem.retryable)
        except ModelIdle as problem:
            return failed("model-idle-timeout", str(problem), retryable=True)
        self._usage = self._usage.plus(response.usage)
        return _message(response, turn.provider.name)

    async def _answer_calls(self, message: Message) -> Outcome | None:
        """Every call of a message gets its result, and the results stand behind it."""
        await self._report(MessageKept(message))
        hit(Point.CALLS_PLANNED)
        batch = Batch(message.message_id, self._turn.toolbox, self._report)
        if message.stop_reason == "tool":
            await batch.run(message.tool_calls)
        else:
            await batch.refuse(message.tool_calls, "output-limit", CUT)
        self._messages.append(message)
        return await self._close(message.message_id, message.tool_calls, batch, message.usage or Usage())

    async def _go_on_with(self, opened: Sequence[OpenCall]) -> Outcome | None:
        """What an earlier attempt left: its results stand, what it had started is unknown, what it had not may run."""
        message = self._messages[-1]
        batch = Batch(message.message_id, self._turn.toolbox, self._report)
        batch.results.update((item.call.tool_call_id, item.result) for item in opened if item.result is not None)
        lost = [
            Answer(item.call, closing(item, self._ids.new(), stopped=False), started=True)
            for item in opened
            if item.state is CallState.INTENDED
        ]
        if lost:
            await self._report(CallsEnded(message.message_id, tuple(lost)))
            batch.results.update((answer.call.tool_call_id, answer.result) for answer in lost)
        hit(Point.CALLS_RECOVERED)
        planned = [item.call for item in opened if item.state is CallState.PLANNED]
        if planned and message.stop_reason == "tool":
            await batch.run(planned)
        elif planned:
            await batch.refuse(planned, "output-limit", CUT)
        return await self._close(message.message_id, [item.call for item in opened], batch, message.usage or Usage())

    async def _close(
        self, message_id: str, calls: Sequence[ToolCallPart], batch: Batch, usage: Usage
    ) -> Outcome | None:
        hit(Point.CALLS_DONE)
        results = tuple(batch.results[call.tool_call_id].message(call) for call in calls)
        await self._report(StepClosed(self._step, message_id, results, usage))
        self._messages += results
        return self._guard.judge(calls, batch.results)


def _message(response: Response, model: str) -> Message:
    return response.message.message(stop_reason=response.stop_reason, model=model, usage=response.usage)


def _for_model(message: Message, chars: int) -> Message:
    """Results as the model gets them; the stored ones are longer. The same one is cut the same way each time."""
    if message.role != "tool":
        return message
    parts = tuple(
        replace(part, content=model_text(part.content, chars)) if isinstance(part, ToolResultPart) else part
        for part in message.parts
    )
    return replace(message, parts=parts)
