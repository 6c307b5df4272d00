"""One model behind the model layer: asks it once and turns its events into our parts.

Which vendor it is and how a request is shaped for it is `vendors`' business, what an exception means is `errors`'.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_ai.messages import (
    ModelMessage,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings

from app.clock import Clock
from app.domain.message import StopReason, Usage
from app.domain.wellformed import DeltaJoiner, storable
from app.providers.contract import (
    ArgsDelta,
    Finished,
    ModelRequest,
    ProviderError,
    StreamPart,
    TextDelta,
    ThinkingDelta,
    ThinkingDetail,
    ToolCall,
)
from app.providers.errors import from_exception

Shaped = tuple[list[ModelMessage], ModelSettings, ModelRequestParameters]

_STOP: Final[dict[str, StopReason]] = {
    "stop": "stop",
    "length": "length",
    "tool_call": "tool",
    "content_filter": "content-filter",
    "error": "error",
}


@dataclass(frozen=True, slots=True)
class Layered:
    """What the model layer needs for one vendor's model."""

    provider: str
    model: Model
    shape: Callable[[ModelRequest], Shaped]
    thinking_detail: Callable[[ThinkingPart], dict[str, Any] | None]
    """What has to go back with a thought, None when nothing has."""
    usage: Callable[[StreamedResponse], Usage]


class LayeredProvider:
    """A ModelProvider over the model layer. Its HTTP client belongs to whoever built it."""

    def __init__(self, name: str, layered: Layered, clock: Clock) -> None:
        self.name = name
        self._layered = layered
        self._clock = clock

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Call the model once; see the contract."""
        layered, reading = self._layered, _Reading(self._layered.thinking_detail)
        try:
            messages, settings, parameters = layered.shape(request)
            async with layered.model.request_stream(messages, settings, parameters) as response:
                async for event in response:
                    for part in reading.parts(event):
                        yield part
            for part in reading.rest():
                yield part
            calls = _calls(response)
            for call in calls:
                yield call
            finished = _finished(response, layered.usage(response), has_calls=bool(calls))
        except ProviderError:
            raise
        except Exception as error:
            # Without its cause: a vendor's exception holds the body it sent and the request it got.
            raise from_exception(layered.provider, error, now_ms=self._clock.now_ms()) from None
        yield finished

    async def close(self) -> None:
        """Nothing of its own to release."""


@dataclass(slots=True)
class _Reading:
    """Turns the events of one response into parts."""

    thinking_detail: Callable[[ThinkingPart], dict[str, Any] | None]
    text: DeltaJoiner = field(default_factory=DeltaJoiner)
    thinking: DeltaJoiner = field(default_factory=DeltaJoiner)
    call_ids: dict[int, str] = field(default_factory=dict)

    def parts(self, event: ModelResponseStreamEvent) -> list[StreamPart]:
        kind = type(event)
        if kind is PartDeltaEvent:
            return self._delta(event.index, event.delta)  # type: ignore[union-attr]
        if kind is PartStartEvent:
            return self._start(event.index, event.part)  # type: ignore[union-attr]
        if kind is PartEndEvent and isinstance(event.part, ThinkingPart):  # type: ignore[union-attr]
            detail = self.thinking_detail(event.part)  # type: ignore[union-attr]
            return [*self._thinking(self.thinking.rest()), *([ThinkingDetail(detail)] if detail else [])]
        return []

    def rest(self) -> list[StreamPart]:
        return self._text(self.text.rest())

    def _delta(self, index: int, delta: object) -> list[StreamPart]:
        if isinstance(delta, TextPartDelta):
            return self._text(self.text.feed(delta.content_delta))
        if isinstance(delta, ThinkingPartDelta):
            return self._thinking(self.thinking.feed(delta.content_delta or ""))
        if isinstance(delta, ToolCallPartDelta) and isinstance(delta.args_delta, str):
            return self._args(index, delta.args_delta)
        return []

    def _start(self, index: int, part: object) -> list[StreamPart]:
        if isinstance(part, TextPart):
            return self._text(self.text.feed(part.content))
        if isinstance(part, ThinkingPart):
            return self._thinking(self.thinking.feed(part.content))
        if isinstance(part, ToolCallPart):
            self.call_ids[index] = part.tool_call_id
            return self._args(index, part.args if isinstance(part.args, str) else "")
        return []

    def _args(self, index: int, text: str) -> list[StreamPart]:
        call_id = self.call_ids.get(index)
        return [ArgsDelta(call_id, storable(text))] if text and call_id else []

    @staticmethod
    def _text(text: str) -> list[StreamPart]:
        return [TextDelta(text)] if text else []

    @staticmethod
    def _thinking(text: str) -> list[StreamPart]:
        return [ThinkingDelta(text)] if text else []


def settings(request: ModelRequest, extra_body: dict[str, Any] | None = None) -> ModelSettings:
    """What a request asks of the model, in the model layer's words."""
    wanted = ModelSettings()
    if extra_body is not None:
        wanted["extra_body"] = extra_body
    if request.thinking is not None:
        wanted["thinking"] = False if request.thinking == "off" else request.thinking
    if request.max_output_tokens is not None:
        wanted["max_tokens"] = request.max_output_tokens
    return wanted


def _calls(response: StreamedResponse) -> list[ToolCall]:
    """The calls in the order in which they began, with the arguments as the model wrote them."""
    return [
        ToolCall(storable(part.tool_call_id), storable(part.tool_name), storable(_args_text(part)))
        for part in response.get().parts
        if isinstance(part, ToolCallPart)
    ]


def _args_text(part: ToolCallPart) -> str:
    return part.args if part.args and isinstance(part.args, str) else part.args_as_json_str()


def _finished(response: StreamedResponse, usage: Usage, *, has_calls: bool) -> Finished:
    stop: StopReason = _STOP.get(response.finish_reason or "stop", "stop")
    if stop in ("stop", "tool"):
        # Servers say `stop` behind calls, and `tool_calls` where there are none.
        stop = "tool" if has_calls else "stop"
    details = response.provider_details or {}
    detail = {"finishReason": details.get("finishReason") or details.get("finish_reason")}
    if response.provider_response_id:
        detail["responseId"] = response.provider_response_id
    return Finished(stop, usage, model=response.model_name, detail={k: v for k, v in detail.items() if v})
