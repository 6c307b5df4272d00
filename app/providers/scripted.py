"""The scripted provider: plays the responses of a script, or says the message back. For tests of a front end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from app.clock import Ids, UuidIds
from app.domain.message import Usage
from app.providers.contract import (
    ArgsDelta,
    Finished,
    ModelRequest,
    ProviderError,
    StreamPart,
    TextDelta,
    ThinkingDelta,
    ToolCall,
)
from app.providers.script import Call, Failure, Pause, Response, Script, Text, Thinking
from app.providers.utterance import last_user_text, words


class ScriptedProvider:
    """A ModelProvider without a model. Without a script it echoes the last user text, word by word."""

    def __init__(self, name: str = "scripted", script: Script | None = None, *, ids: Ids | None = None) -> None:
        self.name = name
        self._script = script
        self._ids = ids or UuidIds()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        """Play the response that fits; see the contract."""
        text = last_user_text(request.messages)
        if self._script is None:
            for word in words(text):
                yield TextDelta(word)
            yield Finished("stop", Usage(model_calls=1), model=self.name)
            return
        response = self._script.take(text)
        if response is None:
            raise ProviderError("provider-refused", f"{self.name}: the script has no response left for this message")
        async with aclosing(self._play(response)) as parts:
            async for part in parts:
                yield part

    async def close(self) -> None:
        """Nothing to release."""

    async def _play(self, response: Response) -> AsyncGenerator[StreamPart, None]:
        calls: list[ToolCall] = []
        for part in response.parts:
            match part:
                case Text(text):
                    yield TextDelta(text)
                case Thinking(text):
                    yield ThinkingDelta(text)
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Call(call_id, name, args):
                    call = ToolCall(call_id or f"call_{self._ids.new()}", name, args or "{}")
                    calls.append(call)
                    yield ArgsDelta(call.tool_call_id, call.args)
                case Failure(code, message, is_retryable):
                    raise ProviderError(code, message, retryable=is_retryable)
        for call in calls:
            yield call
        yield Finished(response.stop_reason, response.usage, model=self.name)
