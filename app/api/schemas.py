"""Bodies that clients send, as pydantic models: closed, with a bound on every field."""

from __future__ import annotations

from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from app.domain.admission import LATER_MODES, QueueMode
from app.domain.message import ThinkingLevel
from app.domain.session import key_problem, reserved_problem
from app.errors import FieldProblem, NotAvailable

METADATA_BYTES_MAX = 16_384
LATER_FIELDS = ("tools", "attachments", "verbose", "trace")
LATER_QUEUE_FIELDS = ("debounceMs", "drop")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, strict=True)


class TextPartBody(_Body):
    """A part of the message."""

    type: Literal["text"]
    text: str = Field(min_length=1)


NO_NUL = r"^[^\x00]*$"


class QueueBody(_Body):
    """What the message does when the session has work."""

    mode: QueueMode | None = Field(None, description="Omitted: as configured (`queue.mode`).")
    cap: int | None = Field(
        None, ge=1, le=10_000, description="Waiting runs the session may hold. Omitted: as configured."
    )


class RunBody(_Body):
    """A message to run. Only `message` is required."""

    message: str | list[TextPartBody] = Field(description="Text, or parts of type `text`. Not blank.")
    session_key: str | None = Field(None, description="The session, made when new. Omitted: the agent's main session.")
    session_id: str | None = Field(
        None, min_length=1, max_length=64, description="A session by the id of its current transcript."
    )
    agent: str | None = Field(
        None, min_length=1, max_length=64, description="Omitted: the session's agent, else `main`."
    )
    model: str | None = Field(
        None, min_length=1, max_length=256, pattern=NO_NUL, description="`provider:model`. Omitted: the agent's."
    )
    thinking: ThinkingLevel | None = Field(None, description="How much the model may think. Omitted: its own default.")
    reasoning: Literal["off", "on", "stream"] = Field(
        "off", description="`on`: thinking comes with the reply; `stream`: also as `thinking` events."
    )
    queue: QueueBody = Field(default_factory=QueueBody)
    timeout_seconds: float | None = Field(
        None, ge=0, le=31_536_000, description="The run's own limit on execution. 0: none. Omitted: the agent's."
    )
    extra_system_prompt: str = Field("", max_length=100_000, description="Added to the system prompt of this run.")
    reply_required: bool = Field(True, description="Whether an empty answer is a failure.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Yours, kept and given back. At most 16 KiB.")
    label: str | None = Field(
        None, min_length=1, max_length=256, pattern=NO_NUL, description="For people, shown in lists. Without NUL."
    )

    @field_validator("message")
    @classmethod
    def _not_blank(cls, value: str | list[TextPartBody]) -> str | list[TextPartBody]:
        text = value if isinstance(value, str) else "".join(part.text for part in value)
        if not text.strip():
            raise ValueError("must hold some text")
        return value

    @field_validator("session_key")
    @classmethod
    def _key(cls, value: str | None) -> str | None:
        if value is not None:
            problem = key_problem(value) or reserved_problem(value)
            if problem is not None:
                raise ValueError(problem)
        return value

    @field_validator("metadata")
    @classmethod
    def _bounded(cls, value: dict[str, Any]) -> dict[str, Any]:
        if len(orjson.dumps(value)) > METADATA_BYTES_MAX:
            raise ValueError(f"must be at most {METADATA_BYTES_MAX} bytes of JSON")
        return value

    def parts(self) -> list[dict[str, Any]]:
        """The message as wire parts."""
        if isinstance(self.message, str):
            return [{"type": "text", "text": self.message}]
        return [{"type": part.type, "text": part.text} for part in self.message]


class AbortBody(_Body):
    """Why a run or session is stopped."""

    reason: str | None = Field(
        None,
        max_length=256,
        pattern=NO_NUL,
        description="Kept with the run and told in its terminal event. Without NUL.",
    )


def refuse_later(body: dict[str, Any]) -> None:
    """Raise NotAvailable for parts of the contract that this build does not have: never accepted and ignored."""
    places = [f"#/{name}" for name in LATER_FIELDS if name in body]
    queue = body.get("queue")
    if isinstance(queue, dict):
        places += [f"#/queue/{name}" for name in LATER_QUEUE_FIELDS if name in queue]
        if queue.get("mode") in LATER_MODES:
            places.append("#/queue/mode")
    if places:
        problems = [FieldProblem(_later(place), pointer=place) for place in places]
        raise NotAvailable(f"Not available in this build: {', '.join(place[2:] for place in places)}.", *problems)


def _later(place: str) -> str:
    return "available: followup, reject" if place == "#/queue/mode" else "leave it out"
