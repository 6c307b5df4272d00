"""A turn: one pass of the agent loop for a run. Model, and again while it asks for tools, until it has answered.

It knows no store, lane, event log or HTTP: it gets its input, reports steps through one awaited function, and
returns how it ended. Stopping it is cancelling it.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.agent.model_call import ModelIdle, Response, call_model
from app.clock import Ids
from app.domain.message import Message, ThinkingLevel, ToolCallPart, ToolResultPart, Usage
from app.domain.outcome import completed, failed, silent
from app.domain.prompt import model_view
from app.domain.step import MessageKept, ModelOpened, Report, TurnEnd
from app.providers.contract import ModelProvider, ModelRequest, ProviderError

TOOL_ROUNDS_MAX = 200
"""Responses with tool calls that one run may have."""

NO_TOOLS = "This tool was not run: this service offers no tools yet. Answer without tools."


@dataclass(frozen=True, slots=True)
class TurnInput:
    """All that a turn works from. `history` ends with the user's message, or with what its run has settled since."""

    provider: ModelProvider
    idle_s: float
    system: str
    history: tuple[Message, ...]
    thinking: ThinkingLevel | None
    reply_required: bool


async def run_turn(turn: TurnInput, report: Report, ids: Ids) -> TurnEnd:
    """Work until the model has answered or cannot. Raises what `report` raises; everything else is in the result."""
    messages = list(turn.history)
    usage = Usage()
    step = rounds = 0
    asked_again = False
    while True:
        step += 1
        message_id = ids.new()
        await report(ModelOpened(step, turn.provider.name, message_id))
        request = ModelRequest(turn.system, model_view(messages), thinking=turn.thinking)
        try:
            response = await call_model(turn.provider, request, message_id, report, turn.idle_s)
        except ProviderError as problem:
            return TurnEnd(failed(problem.code, str(problem), retryable=problem.retryable), None, usage)
        except ModelIdle as problem:
            return TurnEnd(failed("model-idle-timeout", str(problem), retryable=True), None, usage)
        usage = usage.plus(response.usage)
        message = _message(response, turn.provider.name)
        if message.tool_calls:
            rounds += 1
            results = tuple(_refuse(call, ids) for call in message.tool_calls)
            await report(MessageKept(step, message, results, response.usage))
            messages += [message, *results]
            if rounds >= TOOL_ROUNDS_MAX:
                text = f"The model asked for tools {rounds} times in this run."
                return TurnEnd(failed("tool-rounds-exhausted", text), None, usage)
            continue
        if message.text.strip():
            return TurnEnd(completed(response.stop_reason), message, usage)
        if not turn.reply_required:
            return TurnEnd(silent(response.stop_reason), None, usage)
        if asked_again:
            return TurnEnd(failed("empty-reply", "The model gave an empty answer twice.", retryable=True), None, usage)
        asked_again = True


def _message(response: Response, model: str) -> Message:
    return response.message.message(stop_reason=response.stop_reason, model=model, usage=response.usage)


def _refuse(call: ToolCallPart, ids: Ids) -> Message:
    return Message("tool", ids.new(), (ToolResultPart(call.tool_call_id, call.name, NO_TOOLS, is_error=True),))
