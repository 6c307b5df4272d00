"""Messages as the transcript keeps them and as the model gets them.

A message is a role and a list of parts. Values only: how they are stored is `store`'s business, how a
provider wants them is `providers`'. The JSON form is the wire form of a transcript item's parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

_N = TypeVar("_N", int, float)

Role = Literal["user", "assistant", "tool"]

ThinkingLevel = Literal["off", "minimal", "low", "medium", "high", "xhigh"]
"""How much a model is asked to think; None where nothing is asked."""

StopReason = Literal["stop", "length", "tool", "content-filter", "aborted", "error"]
"""Why a model response ended; the words of the wire."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text for people."""

    text: str

    def to_json(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text}


@dataclass(frozen=True, slots=True)
class ThinkingPart:
    """A model's reasoning. `detail` is the provider's own proof of it (a signature), opaque, sent back as it came."""

    text: str
    detail: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        shaped: dict[str, Any] = {"type": "thinking", "text": self.text}
        if self.detail:
            shaped["detail"] = self.detail
        return shaped


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """A call that the model asks for. `args` is text as the model wrote it.

    `tool_call_id` is ours, unique over all calls of the service; `provider_id` is the provider's own, which it gets
    back (empty: it gets ours). Providers give the same one again in another response.
    """

    tool_call_id: str
    name: str
    args: str
    provider_id: str = ""

    def to_json(self) -> dict[str, Any]:
        shaped = {"type": "toolCall", "toolCallId": self.tool_call_id, "name": self.name, "args": self.args}
        if self.provider_id:
            shaped["providerId"] = self.provider_id
        return shaped


@dataclass(frozen=True, slots=True)
class ToolResultPart:
    """The one answer to a call; `tool_call_id` and `provider_id` are those of the call."""

    tool_call_id: str
    name: str
    content: str
    is_error: bool = False
    provider_id: str = ""

    def to_json(self) -> dict[str, Any]:
        shaped: dict[str, Any] = {
            "type": "toolResult",
            "toolCallId": self.tool_call_id,
            "name": self.name,
            "content": self.content,
            "isError": self.is_error,
        }
        if self.provider_id:
            shaped["providerId"] = self.provider_id
        return shaped


Part = TextPart | ThinkingPart | ToolCallPart | ToolResultPart


def part_from_json(value: dict[str, Any]) -> Part:
    """The inverse of `to_json`. Raises KeyError or ValueError on what was not written by it."""
    kind = value["type"]
    if kind == "text":
        return TextPart(value["text"])
    if kind == "thinking":
        return ThinkingPart(value["text"], value.get("detail"))
    if kind == "toolCall":
        return ToolCallPart(value["toolCallId"], value["name"], value["args"], value.get("providerId", ""))
    if kind == "toolResult":
        return ToolResultPart(
            value["toolCallId"], value["name"], value["content"], value["isError"], value.get("providerId", "")
        )
    raise ValueError(f"unknown part type {kind!r}")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more model calls. A count that the provider did not tell is None, not 0."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: float | None = None
    model_calls: int = 0

    def plus(self, other: Usage) -> Usage:
        """The sum; unknown plus known is known."""
        return Usage(
            input_tokens=_add(self.input_tokens, other.input_tokens),
            output_tokens=_add(self.output_tokens, other.output_tokens),
            cache_read_tokens=_add(self.cache_read_tokens, other.cache_read_tokens),
            cache_write_tokens=_add(self.cache_write_tokens, other.cache_write_tokens),
            cost_usd=_add(self.cost_usd, other.cost_usd),
            model_calls=self.model_calls + other.model_calls,
        )

    @property
    def total_tokens(self) -> int | None:
        """Input plus output, None when neither is known."""
        return _add(self.input_tokens, self.output_tokens)

    def to_json(self) -> dict[str, Any]:
        """Wire form (`usage` of a run and of `step-end`)."""
        return {
            "inputTokens": self.input_tokens,
            "outputTokens": self.output_tokens,
            "cacheReadTokens": self.cache_read_tokens,
            "cacheWriteTokens": self.cache_write_tokens,
            "totalTokens": self.total_tokens,
            "costUsd": self.cost_usd,
            "modelCalls": self.model_calls,
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> Usage:
        return Usage(
            input_tokens=value.get("inputTokens"),
            output_tokens=value.get("outputTokens"),
            cache_read_tokens=value.get("cacheReadTokens"),
            cache_write_tokens=value.get("cacheWriteTokens"),
            cost_usd=value.get("costUsd"),
            model_calls=value.get("modelCalls", 0),
        )


def _add(a: _N | None, b: _N | None) -> _N | None:
    if a is None:
        return b
    return a if b is None else a + b


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `message_id` names it on the wire; an assistant message carries how it ended and what it cost."""

    role: Role
    message_id: str
    parts: tuple[Part, ...]
    stop_reason: StopReason | None = None
    model: str | None = None
    usage: Usage | None = None
    source: str = field(default="")

    @property
    def text(self) -> str:
        """The text parts joined, in order, with nothing between."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def thinking(self) -> str:
        """The thinking parts joined, in order, with nothing between."""
        return "".join(part.text for part in self.parts if isinstance(part, ThinkingPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))
