"""Runs, and what accepting, waiting and stopping answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, RootModel

from app.api.words import (
    Count,
    Id,
    Outcome,
    Page,
    Path,
    RunErrorCode,
    RunState,
    Schema,
    SessionKey,
    Time,
    WaitErrorCode,
)
from app.domain.message import StopReason


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


class RunPage(Page):
    """Runs, newest first."""

    items: list[Run]


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
