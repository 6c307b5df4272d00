"""A message while it grows: parts in the order they came, text joined, halves of characters put together."""

from __future__ import annotations

from typing import Any, Literal

from app.domain.message import Message, Part, StopReason, TextPart, ThinkingPart, ToolCallPart, Usage
from app.domain.wellformed import DeltaJoiner, well_formed

Kind = Literal["text", "thinking"]


class _Block:
    """One run of text or thinking."""

    __slots__ = ("detail", "kind", "pieces")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        self.detail: dict[str, Any] | None = None

    def part(self) -> Part:
        text = "".join(self.pieces)
        return TextPart(text) if self.kind == "text" else ThinkingPart(text, self.detail)


class GrowingMessage:
    """Takes deltas as a provider gives them; says what of each can be told, and becomes a Message."""

    __slots__ = ("_joiners", "_parts", "length", "message_id")

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        self.length: dict[Kind, int] = {"text": 0, "thinking": 0}
        self._parts: list[_Block | ToolCallPart] = []
        self._joiners: dict[Kind, DeltaJoiner] = {"text": DeltaJoiner(), "thinking": DeltaJoiner()}

    def add(self, kind: Kind, delta: str) -> str:
        """Add a delta; returns what of it can be told now (may be empty)."""
        return self._grow(kind, self._joiners[kind].feed(delta))

    def flush(self, kind: Kind) -> str:
        """What was held back and will get no second half; may be empty."""
        return self._grow(kind, self._joiners[kind].rest())

    def add_call(self, call: ToolCallPart) -> None:
        """Add a complete call."""
        self._parts.append(
            ToolCallPart(
                call.tool_call_id, well_formed(call.name), well_formed(call.args), well_formed(call.provider_id)
            )
        )

    def add_detail(self, detail: dict[str, Any]) -> None:
        """The provider's opaque detail of the thinking that came last; a block of its own when none came."""
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _Block) or last.kind != "thinking":
            last = _Block("thinking")
            self._parts.append(last)
        last.detail = {**(last.detail or {}), **detail}

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        return tuple(part for part in self._parts if isinstance(part, ToolCallPart))

    @property
    def told_something(self) -> bool:
        return bool(self.length["text"] or self.length["thinking"])

    def message(
        self, *, stop_reason: StopReason, model: str, usage: Usage | None = None, with_calls: bool = True
    ) -> Message:
        """The message as it stands. Without calls for one that was cut off: a half-streamed call is left out."""
        parts = tuple(
            part.part() if isinstance(part, _Block) else part
            for part in self._parts
            if with_calls or isinstance(part, _Block)
        )
        return Message("assistant", self.message_id, parts, stop_reason=stop_reason, model=model, usage=usage)

    def _grow(self, kind: Kind, text: str) -> str:
        if text:
            last = self._parts[-1] if self._parts else None
            if not isinstance(last, _Block) or last.kind != kind:
                last = _Block(kind)
                self._parts.append(last)
            last.pieces.append(text)
            self.length[kind] += len(text)
        return text
