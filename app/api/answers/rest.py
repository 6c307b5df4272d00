"""The ledger, what is configured, and the probes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, RootModel

from app.api.words import Count, Id, Page, Schema, SessionKey, Time
from app.domain import audit
from app.settings import ProviderKind


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


class AuditPage(Page):
    """Rows of the ledger, newest first."""

    items: list[AuditRow]


class Agent(Schema):
    """A configured agent."""

    agent: str = Field(examples=["main"])
    description: str
    model: str = Field(examples=["openai:gpt-5-mini"])
    timeout_seconds: float = Field(ge=0, description="Limit of its runs; 0: none.")
    default: bool


class AgentPage(Page):
    """All agents, `main` first."""

    items: list[Agent]


class Model(Schema):
    """A model that agents use."""

    model: str = Field(examples=["openai:gpt-5-mini"])
    kind: ProviderKind | None = Field(description="What its provider speaks. Null: no such provider is configured.")
    demo: bool = Field(description="The built-in, scripted, offline one.")
    default: bool = Field(description="That of the agent `main`.")
    problem: str | None = Field(description="Why it cannot be used as configured.")


class ModelPage(Page):
    """All models that agents use."""

    items: list[Model]


class Tool(Schema):
    """A tool that the service has."""

    name: str = Field(examples=["read"])
    description: str = Field(description="What models are told of it.")
    parameters: dict[str, Any] = Field(description="JSON schema of its arguments.")
    sequential: bool = Field(description="Whether calls of one answer run one after the other when it is among them.")
    offered: bool = Field(description="Whether models are told of it and may call it.")


class ToolPage(Page):
    """All tools, offered or not."""

    items: list[Tool]


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


class MetricsText(RootModel[str]):
    """Prometheus text format."""
