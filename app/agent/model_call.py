"""One model call: the provider's parts become one message, deltas are reported as they come, silence is bounded."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

from app.clock import Ids
from app.domain.growing import GrowingMessage, Kind
from app.domain.message import StopReason, ToolCallPart, Usage
from app.domain.step import DeltaTold, Report
from app.providers.contract import (
    ArgsDelta,
    Finished,
    ModelProvider,
    ModelRequest,
    ProviderError,
    TextDelta,
    ThinkingDelta,
    ThinkingDetail,
    ToolCall,
)


class ModelIdle(Exception):
    """The model sent no content for longer than its limit."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"The model sent no content for {limit_s:g} s.")


@dataclass(frozen=True, slots=True)
class Response:
    """A complete answer of the model."""

    message: GrowingMessage
    stop_reason: StopReason
    usage: Usage


async def call_model(  # noqa: PLR0913
    provider: ModelProvider, request: ModelRequest, message_id: str, report: Report, idle_s: float, ids: Ids
) -> Response:
    """Make one request and report its deltas. Raises ProviderError, ModelIdle, and what `report` raises.

    However it ends, the connection to the provider is closed before it returns.
    """
    message = GrowingMessage(message_id)
    watch = _IdleWatch(idle_s)
    try:
        finished = await _read(provider, request, message, report, watch, ids)
    except asyncio.CancelledError:
        if watch.claim():
            raise ModelIdle(idle_s) from None
        raise
    finally:
        watch.stop()
    for kind in ("text", "thinking"):
        await _tell(message, kind, message.flush(kind), report)
    return Response(message, finished.stop_reason, finished.usage)


async def _read(  # noqa: PLR0913
    provider: ModelProvider,
    request: ModelRequest,
    message: GrowingMessage,
    report: Report,
    watch: _IdleWatch,
    ids: Ids,
) -> Finished:
    async with aclosing(provider.stream(request)) as parts:  # type: ignore[type-var]
        async for part in parts:
            watch.content()
            match part:
                case TextDelta(text):
                    watch.reporting = True
                    await _tell(message, "text", message.add("text", text), report)
                    watch.reporting = False
                case ThinkingDelta(text):
                    watch.reporting = True
                    await _tell(message, "thinking", message.add("thinking", text), report)
                    watch.reporting = False
                case ThinkingDetail(detail):
                    message.add_detail(detail)
                case ToolCall(call_id, name, args):
                    message.add_call(ToolCallPart(ids.new(), name, args, call_id))
                case ArgsDelta():
                    pass
                case Finished():
                    return part
    raise ProviderError("provider-bad-response", "The provider's answer ended without saying so.", retryable=True)


async def _tell(message: GrowingMessage, kind: Kind, text: str, report: Report) -> None:
    if text:
        await report(DeltaTold(kind, text, message.length[kind] - len(text)))


class _IdleWatch:
    """Cancels the calling task when no content came for `limit_s`; time spent in our own store does not count.

    One timer that looks back, instead of one re-armed at each delta.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._last = self._loop.time()
        self._fired = False
        self.reporting = False
        self._timer = self._loop.call_later(limit_s, self._look)

    def content(self) -> None:
        self._last = self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()

    def claim(self) -> bool:
        """Whether the cancellation under way is this watch's own and nobody else's; then it is taken back."""
        if not self._fired or self._task is None:
            return False
        return self._task.uncancel() == 0

    def _look(self) -> None:
        if self.reporting:
            self._last = self._loop.time()
        left = self._last + self._limit_s - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        elif self._task is not None:
            self._fired = True
            self._task.cancel()
