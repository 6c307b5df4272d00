"""What stands in the `data` of each event, by stream and phase, as models for the OpenAPI document alone.

Loaded when the document is first asked for; no event is made or checked by them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from app.api.answers.runs import QueuedReceipt, Run, RunError, Usage
from app.api.answers.sessions import TextPart
from app.api.words import CallOutcome, Count, Id, Outcome, RunState, Schema, Time
from app.domain.message import StopReason
from app.domain.tool_event import NAME_CHARS

Attempt = Annotated[int, Field(ge=1, description="More than one after a crash.")]
Step = Annotated[int, Field(ge=1, description="Which call of a model it is, counted within the run.")]


# lifecycle


class Input(Schema):
    """The message that the run answers."""

    message_id: Id
    parts: list[TextPart]
    source: str = Field(description="Where it came in.", examples=["api"])
    truncated: Literal[True] | None = Field(None, description="It was cut to `limits.event_bytes`.")


class QueuedData(Schema):
    """The run was accepted, and waits for its turn."""

    phase: Literal["queued"]
    input: Input
    receipt: QueuedReceipt


class StartData(Schema):
    """The run begins to execute."""

    phase: Literal["start"]
    attempt: Attempt
    started_at: Time


class ResumedData(Schema):
    """The run goes on after a crash or a restart."""

    phase: Literal["resumed"]
    attempt: Attempt
    started_at: Time
    resets: list[Id] = Field(description="Messages that were not finished: drop what you hold of them.")


class ModelData(Schema):
    """A model is called."""

    phase: Literal["model"]
    step: Step
    provider: str = Field(examples=["openai"])
    model: str = Field(examples=["openai:gpt-5-mini"])
    attempt: Attempt
    message_id: Id = Field(description="The message that it is going to write.")


class StepEndData(Schema):
    """A model call and the tools that it asked for are done, and the run goes on."""

    phase: Literal["step-end"]
    step: Step
    usage: Usage = Field(description="Of this call.")


class RunUsage(Usage):
    """What the run used; null is not known."""

    by_model: dict[str, Usage] = Field(description="The same for each model.")


class _LastData(Schema):
    final: Literal[True]
    stop_reason: StopReason | None = Field(description="Why the model's last response ended.")
    started_at: Time | None = Field(description="Null when it never began.")
    ended_at: Time
    usage: RunUsage | None = Field(None, description="There when it ended while it was executed.")
    reason: str | None = Field(None, description="As an abort gave it.")


class EndData(_LastData):
    """The last event of a run that did not fail."""

    phase: Literal["end"]
    outcome: Outcome
    status: Literal["succeeded", "cancelled"]


class ErrorData(_LastData):
    """The last event of a run that failed."""

    phase: Literal["error"]
    error: RunError
    status: Literal["failed", "timed_out"]


class LifecycleData(
    RootModel[
        Annotated[
            QueuedData | StartData | ResumedData | ModelData | StepEndData | EndData | ErrorData,
            Field(discriminator="phase"),
        ]
    ]
):
    """Where the run stands, by `phase`."""


# assistant and thinking


class DeltaData(Schema):
    """More text of a message."""

    message_id: Id
    delta: str = Field(min_length=1)
    offset: Count = Field(description="Where it begins in the message, in code points.")


class MessageEndData(Schema):
    """The message is complete."""

    message_id: Id
    phase: Literal["end"]
    stop_reason: StopReason
    length: Count = Field(description="Of the whole text, in code points.")
    text: str | None = Field(None, description="The whole text, when it fits an event.")


class MessageResetData(Schema):
    """What came of this message is taken back: drop it."""

    message_id: Id
    phase: Literal["reset"]


class MessageData(RootModel[DeltaData | MessageEndData | MessageResetData]):
    """Text of a message: without `phase` more of it, with one what became of it."""


# tool


class ToolOutput(Schema):
    """What a tool gave, as readers may see it: secrets are masked."""

    content: list[TextPart]
    truncated: bool = Field(description="It was cut to `limits.tool_event_chars`, or is kept cut.")


class _CallData(Schema):
    tool_call_id: str = Field(description="Names the call in all its events and in the transcript.")
    message_id: Id = Field(description="The message that asks for it.")
    name: str = Field(max_length=NAME_CHARS, description="As the model wrote it.", examples=["read"])


class _AskedData(_CallData):
    args: Any = Field(
        None,
        description="What the model wrote, with secrets masked: an object, or the text where it is no JSON. "
        "Not with `tools=summary`.",
    )
    args_truncated: Literal[True] | None = Field(
        None, description="`args` is the beginning of a text that was too long."
    )


class ToolRequestedData(_AskedData):
    """The model has asked for the call."""

    phase: Literal["requested"]


class ToolStartData(_AskedData):
    """The call begins; that it is about to is durable."""

    phase: Literal["start"]


class ToolUpdateData(_CallData):
    """The call shows something."""

    phase: Literal["update"]
    result: ToolOutput | None = Field(None, description="What came since the last update. Not with `tools=summary`.")


class ToolEndData(_CallData):
    """The call has its one result."""

    phase: Literal["end"]
    outcome: CallOutcome
    is_error: bool
    skipped: bool = Field(description="It was never started.")
    duration_ms: Count
    result_message_id: Id = Field(description="The entry of the transcript that holds the result.")
    result: ToolOutput | None = Field(None, description="Not with `tools=summary`.")


class ToolData(
    RootModel[
        Annotated[
            ToolRequestedData | ToolStartData | ToolUpdateData | ToolEndData,
            Field(discriminator="phase"),
        ]
    ]
):
    """A call of a tool, by `phase`."""


# events that concern the stream alone


class ReadyData(Schema):
    """From where the stream goes on, and how often it shows that it lives."""

    cursor: str = Field(pattern="^[0-9]+$", description="The number behind which it goes on.")
    status: RunState
    heartbeat_seconds: float = Field(gt=0, description="No byte for three times as long: the connection is dead.")


class HeartbeatData(Schema):
    """Nothing to say."""


class GapData(Schema):
    """Why what comes next cannot be told."""

    reason: Literal["unknown-cursor", "trimmed"] = Field(
        description="`unknown-cursor`: this service has not given the cursor out. `trimmed`: it is not kept any more."
    )
    oldest_seq: int = Field(ge=1, description="Number of the oldest event kept.")


class MessageSoFar(Schema):
    """A message as far as it was told."""

    message_id: Id
    stream: Literal["assistant", "thinking"]
    text: str
    ended: bool


class OpenToolCall(Schema):
    """A call without a result."""

    tool_call_id: str
    message_id: Id
    name: str = Field(max_length=NAME_CHARS)
    args: Any = Field(description="As in the events of the call.")
    state: Literal["requested", "started"]


class SnapshotRun(Run):
    """A run as it stands, with what was told of it."""

    input: Input
    messages: list[MessageSoFar]
    open_tool_calls: list[OpenToolCall]


class SnapshotData(Schema):
    """All that the events up to its id would have told."""

    session_id: Id
    runs: list[SnapshotRun] = Field(description="The run of the stream.")


class ShutdownData(Schema):
    """Why the stream ends before its run."""

    reason: Literal["draining"]
