"""Steps of a turn as it reports them. One awaited function takes them; when it returns, the step is durable.

Deltas and updates are the exception: they are told when the report returns and durable within 20 ms.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from app.domain.message import Message, ToolCallPart, Usage
from app.domain.outcome import Outcome
from app.domain.tool_call import CallResult


@dataclass(frozen=True, slots=True)
class ModelOpened:
    """A model request is about to be made; what it answers will be `message_id`."""

    step: int
    model: str
    message_id: str


@dataclass(frozen=True, slots=True)
class DeltaTold:
    """More of the open message, at `offset` code points of its kind."""

    kind: Literal["text", "thinking"]
    text: str
    offset: int


@dataclass(frozen=True, slots=True)
class MessageKept:
    """The open message is complete and the turn goes on: it asked for tools. None of its calls has begun."""

    message: Message


@dataclass(frozen=True, slots=True)
class CallsIntended:
    """These calls are about to start, now and together."""

    message_id: str
    calls: tuple[ToolCallPart, ...]


@dataclass(frozen=True, slots=True)
class GroupOwned:
    """What a running call starts will be in this process group."""

    tool_call_id: str
    group: str


@dataclass(frozen=True, slots=True)
class CallShown:
    """More output of a running call, as readers may see it. Told on return."""

    message_id: str
    call: ToolCallPart
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A call with its result. `started`: it was intended before."""

    call: ToolCallPart
    result: CallResult
    started: bool


@dataclass(frozen=True, slots=True)
class CallsEnded:
    """These calls have their results."""

    message_id: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class StepClosed:
    """All calls of a message have their results; `results` are their messages, in the order of the calls."""

    step: int
    message_id: str
    results: tuple[Message, ...]
    usage: Usage


Step = ModelOpened | DeltaTold | MessageKept | CallsIntended | GroupOwned | CallShown | CallsEnded | StepClosed

Report = Callable[[Step], Awaitable[None]]
"""May raise when the attempt may not go on; the turn lets that through. Reports may overlap; each is whole."""


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How a turn ended by itself. `message` is the last one, whole; None when there is none to keep."""

    outcome: Outcome
    message: Message | None
    usage: Usage
