"""Steps: what a turn reports while it works. The loop says what happened; the recorder makes it durable and known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from app.domain.message import Message, Usage
from app.domain.outcome import Outcome


@dataclass(frozen=True, slots=True)
class ModelOpened:
    """A model request is about to be made; what it answers will be `message_id`. Durable when the report returns."""

    step: int
    model: str
    message_id: str


@dataclass(frozen=True, slots=True)
class DeltaTold:
    """More of the open message, at `offset` code points of its kind. Told on return, durable soon after."""

    kind: Literal["text", "thinking"]
    text: str
    offset: int


@dataclass(frozen=True, slots=True)
class MessageKept:
    """The open message is complete and the turn goes on: it asked for tools, and `results` answer each of its calls."""

    step: int
    message: Message
    results: tuple[Message, ...]
    usage: Usage


Step = ModelOpened | DeltaTold | MessageKept

Report = Callable[[Step], Awaitable[None]]
"""May raise when the attempt may not go on; the turn lets that through."""


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How a turn ended by itself. `message` is the last one, whole; None when there is none to keep."""

    outcome: Outcome
    message: Message | None
    usage: Usage
