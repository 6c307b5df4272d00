"""What the service answers with, as models for the OpenAPI document alone: no answer is made or checked by them.

Loaded when the document is first asked for. A field of type `X | None` is always there and may be null; one with the
default None is left out when it does not apply.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from app.api.words import (
    Count,
    Id,
    Outcome,
    Path,
    ProblemCode,
    RunErrorCode,
    RunState,
    Schema,
    SessionKey,
    Time,
    WaitErrorCode,
)
from app.domain import audit
from app.domain.message import Role, StopReason
from app.settings import ProviderKind


class Place(Schema):
    """A wrong place in the request: what is wrong, and one of the other three, where."""

    detail: str = Field(description="What is wrong, or what is allowed.")
    pointer: str | None = Field(
        None, description="JSON pointer into the body, as a fragment.", examples=["#/queue/mode"]
    )
    parameter: str | None = Field(None, description="Name of a path or query parameter.")
    header: str | None = Field(None, description="Name of a header.")


class Problem(Schema):
    """A failure (RFC 9457)."""

    type: str = Field(description="`urn:laneway:problem:` and the code.")
    title: str = Field(description="The code in words.")
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="What is wrong and what to do, for people.")
    instance: str = Field(description="`urn:laneway:request:` and the `X-Request-Id`.")
    code: ProblemCode
    retryable: bool = Field(description="Whether the same request may work later.")
    retry_after_ms: Count | None = Field(None, description="The least time to wait before; `Retry-After` in seconds.")
    run_id: Id | None = Field(
        None, description="With `store-busy`: whether this run was accepted is not known. Post again with the same key."
    )
    errors: list[Place] | None = Field(None, description="The wrong places, if any.")


# runs


class Links(Schema):
    """Where to go on; paths of this service."""

    self_: Path = Field(alias="self", description="The run.")
    events: Path = Field(description="Its event stream.")
    wait: Path = Field(description="Waits for its end.")
    abort: Path = Field(description="Stops it.")


class QueuedReceipt(Schema):
    """The input waits."""

    state: Literal["queued"]
    position: Count = Field(description="How many runs of the session go first.")
    behind: Id | None = Field(description="The run right before it.")
    since: Time = Field(description="Since when it waits.")


class AttemptReceipt(Schema):
    """The input is or was executed."""

    state: Literal["started", "recovering", "ended"]
    attempt: int = Field(ge=1, description="The last attempt; more than one after a crash.")
    since: Time = Field(description="Since when it is so.")


class WithdrawnReceipt(Schema):
    """The input was taken out of the queue before it was executed."""

    state: Literal["withdrawn"]
    since: Time = Field(description="Since when it is so.")


class Receipt(RootModel[Annotated[QueuedReceipt | AttemptReceipt | WithdrawnReceipt, Field(discriminator="state")]]):
    """What became of the input."""


class Accepted(Schema):
    """The run is durable. A repeat of the request with its key gets this again, as it was."""

    run_id: Id
    accepted_at: Time
    session_key: SessionKey
    session_id: Id = Field(description="The session's present transcript.")
    status: RunState
    receipt: Receipt
    links: Links


class RunError(Schema):
    """Why the run failed."""

    code: RunErrorCode
    message: str = Field(description="For people.")
    retryable: bool = Field(description="Whether the same message may work later.")


class WaitError(Schema):
    """Why there is no good end."""

    code: WaitErrorCode
    message: str = Field(description="For people.")
    retryable: bool = Field(description="Whether the same message may work later.")


class ReplyPayload(Schema):
    """A piece to show."""

    kind: Literal["text", "reasoning", "error"]
    text: str
    code: RunErrorCode | None = Field(None, description="Of kind `error`.")


class Reply(Schema):
    """What the run hands to whoever asked, in the order to show it."""

    payloads: list[ReplyPayload]


class Usage(Schema):
    """What was used; null is not known."""

    input_tokens: Count | None
    output_tokens: Count | None
    cache_read_tokens: Count | None
    cache_write_tokens: Count | None
    total_tokens: Count | None = Field(description="Input and output.")
    cost_usd: float | None = Field(ge=0)
    model_calls: Count = Field(description="How often a model was asked.")


class Run(Schema):
    """A run as it stands."""

    run_id: Id
    session_key: SessionKey
    session_id: Id = Field(description="The transcript it belongs to.")
    agent: str = Field(examples=["main"])
    status: RunState
    outcome: Outcome | None
    stop_reason: StopReason | None = Field(description="Why the model's last response ended.")
    receipt: Receipt
    accepted_at: Time
    started_at: Time | None = Field(description="Of the first attempt.")
    ended_at: Time | None
    abort_requested_at: Time | None
    abort_reason: str | None = Field(description="As the abort gave it.")
    attempt: Count = Field(description="How often it was begun; 0 while it waits for the first time.")
    model: str = Field(examples=["openai:gpt-5-mini"])
    error: RunError | None
    reply: Reply | None = Field(description="Null until the end, and when it ended while nothing executed it.")
    usage: Usage | None = Field(description="Null until the end, and when it ended while nothing executed it.")
    label: str | None
    metadata: dict[str, Any] = Field(description="As it was posted.")
    last_seq: Count = Field(description="Number of the last event kept.")
    links: Links


class WaitEnded(Schema):
    """The run has ended."""

    run_id: Id
    status: Literal["ok", "error", "timeout"] = Field(description="`timeout`: by the run's own limit.")
    outcome: Outcome | None
    stop_reason: StopReason | None
    started_at: Time | None
    ended_at: Time | None
    reply: Reply | None
    usage: Usage | None
    error: WaitError | None = None
    wait_expired: Literal[False]


class WaitExpired(Schema):
    """The run has not ended in this time, and goes on."""

    run_id: Id
    status: Literal["timeout"]
    wait_expired: Literal[True]
    reason: Literal["draining"] | None = Field(None, description="The service shuts down and answers every waiter.")


class WaitResult(RootModel[WaitEnded | WaitExpired]):
    """What a wait came to."""


class AbortResult(Schema):
    """The wish to stop is durable."""

    run_id: Id
    status: RunState
    abort_requested_at: Time | None = Field(description="Null for a run that had ended without an abort.")


class SessionAbortResult(Schema):
    """What became of the session's open runs: those that waited first, then the executing one."""

    session_key: SessionKey
    runs: list[AbortResult]


# sessions


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
    kind: Literal["message"]
    role: Role
    run_id: Id | None
    message_id: Id
    created_at: Time
    aborted: bool = Field(description="Cut off before its end.")
    parts: list[Part]
    stop_reason: StopReason | None = Field(None, description="Of the model's messages.")
    model: str | None = Field(None, description="Of the model's messages.")
    usage: Usage | None = Field(None, description="Of the model's messages.")


# the rest


class AuditRow(Schema):
    """A row of the ledger: who, what and when, never content."""

    event_id: Id
    seq: int = Field(ge=1, description="Its place in the ledger.")
    ts: Time
    kind: str = Field(json_schema_extra={"enum": list(audit.KINDS)})
    action: str = Field(examples=["run.start", "run.end", "tool.start", "tool.end"])
    status: str = Field(json_schema_extra={"enum": list(audit.STATUSES)})
    code: str | None = Field(
        None,
        description="Outcome or error code of the run, its stop reason when that says more; or how a tool call ended.",
    )
    actor: str
    agent: str
    session_key: SessionKey
    session_id: Id
    run_id: Id
    tool_name: str | None = Field(None, description="The tool, if it is one of the service's.")
    tool_call_ref: str | None = Field(None, description="Stands for the call, and tells nothing of it.")
    duration_ms: Count | None = None
    redaction: Literal["metadata_only"]


class Agent(Schema):
    """A configured agent."""

    agent: str = Field(examples=["main"])
    description: str
    model: str = Field(examples=["openai:gpt-5-mini"])
    timeout_seconds: float = Field(ge=0, description="Limit of its runs; 0: none.")
    default: bool


class Tool(Schema):
    """A tool that the service has."""

    name: str = Field(examples=["read"])
    description: str = Field(description="What models are told of it.")
    parameters: dict[str, Any] = Field(description="JSON schema of its arguments.")
    sequential: bool = Field(description="Whether calls of one answer run one after the other when it is among them.")
    offered: bool = Field(description="Whether models are told of it and may call it.")


class Model(Schema):
    """A model that agents use."""

    model: str = Field(examples=["openai:gpt-5-mini"])
    kind: ProviderKind | None = Field(description="What its provider speaks. Null: no such provider is configured.")
    demo: bool = Field(description="The built-in, scripted, offline one.")
    default: bool = Field(description="That of the agent `main`.")
    problem: str | None = Field(description="Why it cannot be used as configured.")


class _Page(Schema):
    next_cursor: str | None = Field(description="Send it as `cursor` for the next page. Null at the end.")


class RunPage(_Page):
    """Runs, newest first."""

    items: list[Run]


class SessionPage(_Page):
    """Sessions, last created first."""

    items: list[Session]


class TranscriptPage(_Page):
    """The newest page first, the oldest entry first within a page."""

    items: list[TranscriptEntry]


class AuditPage(_Page):
    """Rows of the ledger, newest first."""

    items: list[AuditRow]


class AgentPage(_Page):
    """All agents, `main` first."""

    items: list[Agent]


class ToolPage(_Page):
    """All tools, offered or not."""

    items: list[Tool]


class ModelPage(_Page):
    """All models that agents use."""

    items: list[Model]


class MetricsText(RootModel[str]):
    """Prometheus text format."""


class Health(Schema):
    """The process is alive."""

    status: Literal["ok"]


class Ready(Schema):
    """New runs are taken."""

    status: Literal["ready"]


class NotReady(Schema):
    """New runs are not taken."""

    status: Literal["not-ready"]
    reason: Literal["draining", "store-busy"]
