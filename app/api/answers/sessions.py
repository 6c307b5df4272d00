"""Sessions, and what was said in them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from app.api.answers.runs import AbortResult, Usage
from app.api.words import Count, Id, Page, Schema, SessionKey, Time
from app.domain.message import Role, StopReason


class Session(Schema):
    """A session as it stands."""

    session_key: SessionKey
    session_id: Id = Field(description="Its present transcript.")
    agent: str = Field(examples=["main"])
    created_at: Time
    updated_at: Time
    last_input_at: Time
    active_run: Id | None = Field(description="The run that executes.")
    queued_runs: Count
    entries: Count = Field(description="Entries of the transcript.")


class SessionPage(Page):
    """Sessions, last created first."""

    items: list[Session]


class SessionAbortResult(Schema):
    """What became of the session's open runs: those that waited first, then the executing one."""

    session_key: SessionKey
    runs: list[AbortResult]


class TextPart(Schema):
    """Text for people."""

    type: Literal["text"]
    text: str


class ThinkingPart(Schema):
    """The model's thinking."""

    type: Literal["thinking"]
    text: str


class ToolCallPart(Schema):
    """A call that the model asked for."""

    type: Literal["toolCall"]
    tool_call_id: str
    name: str
    args: Any = Field(
        description="What the model wrote, with secrets masked: an object, or the text where it is no JSON."
    )


class ToolResultPart(Schema):
    """The one answer to a call."""

    type: Literal["toolResult"]
    tool_call_id: str
    name: str
    content: str
    is_error: bool


Part = Annotated[TextPart | ThinkingPart | ToolCallPart | ToolResultPart, Field(discriminator="type")]


class TranscriptEntry(Schema):
    """Something that was said."""

    entry_id: Id
    entry_no: int = Field(ge=1, description="Its place in the transcript.")
    kind: Literal["message", "note"] = Field(description="`note`: by `laneway sessions note`, without a run.")
    role: Role
    run_id: Id | None = Field(description="Null of a note.")
    message_id: Id
    created_at: Time
    aborted: bool = Field(description="Cut off before its end.")
    parts: list[Part]
    stop_reason: StopReason | None = Field(None, description="Of the model's messages.")
    model: str | None = Field(None, description="Of the model's messages.")
    usage: Usage | None = Field(None, description="Of the model's messages.")


class TranscriptPage(Page):
    """The newest page first, the oldest entry first within a page."""

    items: list[TranscriptEntry]
