"""A run: one accepted input and what became of it. Statuses, identity of an attempt, and the record people read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from app.domain.message import ThinkingLevel


class RunStatus(StrEnum):
    """Where a run stands. `recovering` is shown as `running`: its work was interrupted and will go on."""

    QUEUED = "queued"
    RUNNING = "running"
    RECOVERING = "recovering"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    MERGED = "merged"
    DROPPED = "dropped"

    @property
    def terminal(self) -> bool:
        return self not in _OPEN

    @property
    def wire(self) -> str:
        """The word a client sees."""
        return "running" if self is RunStatus.RECOVERING else self.value


_OPEN = frozenset({RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.RECOVERING})

OPEN_STATUSES = tuple(status.value for status in RunStatus if not status.terminal)
"""Values of the statuses that are not terminal, for queries."""


@dataclass(frozen=True, slots=True)
class RunInput:
    """What a client asked for, as it is kept with the run. `parts` are wire parts of the user's message."""

    message_id: str
    parts: list[dict[str, Any]]
    source: str
    model: str
    timeout_seconds: float
    thinking: ThinkingLevel | None
    reasoning: str
    extra_system_prompt: str
    reply_required: bool
    metadata: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "messageId": self.message_id,
            "parts": self.parts,
            "source": self.source,
            "model": self.model,
            "timeoutSeconds": self.timeout_seconds,
            "thinking": self.thinking,
            "reasoning": self.reasoning,
            "extraSystemPrompt": self.extra_system_prompt,
            "replyRequired": self.reply_required,
            "metadata": self.metadata,
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> RunInput:
        return RunInput(
            message_id=value["messageId"],
            parts=value["parts"],
            source=value["source"],
            model=value["model"],
            timeout_seconds=value["timeoutSeconds"],
            thinking=value["thinking"],
            reasoning=value["reasoning"],
            extra_system_prompt=value["extraSystemPrompt"],
            reply_required=value["replyRequired"],
            metadata=value["metadata"],
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at executing a run, as the take gave it out: all that the executor may rely on.

    `claim`, (run, attempt), is what every later write of it is checked against. `seq_last` is the last event number
    given out, `next_entry` the transcript's next entry number, `has_input` whether the run's input stands in the
    transcript already, `active_ms` the execution time of earlier attempts.
    """

    run_id: str
    attempt: int
    session_id: str
    session_key: str
    transcript_id: str
    principal: str
    agent: str
    lane_token: int
    take_no: int
    seq_last: int
    next_entry: int
    has_input: bool
    active_ms: int
    started_at: int
    input: RunInput


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as `GET /runs/{runId}` tells it. Times are milliseconds since the epoch."""

    run_id: str
    session_key: str
    session_id: str
    agent: str
    status: RunStatus
    outcome: str | None
    stop_reason: str | None
    model: str
    attempt: int
    accept_no: int
    ahead: int
    behind: str | None
    accepted_at: int
    started_at: int | None
    ended_at: int | None
    abort_at: int | None
    abort_reason: str | None
    last_seq: int
    label: str | None
    metadata: dict[str, Any]
    error: dict[str, Any] | None
    reply: dict[str, Any] | None
    usage: dict[str, Any] | None
