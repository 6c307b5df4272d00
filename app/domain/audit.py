"""Rows of the metadata-only ledger, projected from lifecycle events. Nothing here can hold content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.clock import rfc3339
from app.domain.outcome import Outcome

KINDS = ("agent_run", "tool_action", "message", "approval")
STATUSES = ("started", "succeeded", "failed", "cancelled", "timed_out", "blocked", "unknown")


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One row. `seq` is None until it is stored; `call_ref` is empty for a run's own rows."""

    event_id: str
    ts: int
    kind: str
    action: str
    status: str
    code: str | None
    actor: str
    agent: str
    session_key: str
    session_id: str
    run_id: str
    call_ref: str = ""
    duration_ms: int | None = None
    seq: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Wire form; fields that do not apply are left out."""
        shaped: dict[str, Any] = {
            "eventId": self.event_id,
            "seq": self.seq,
            "ts": rfc3339(self.ts),
            "kind": self.kind,
            "action": self.action,
            "status": self.status,
            "code": self.code,
            "actor": self.actor,
            "agent": self.agent,
            "sessionKey": self.session_key,
            "sessionId": self.session_id,
            "runId": self.run_id,
            "toolCallRef": self.call_ref or None,
            "durationMs": self.duration_ms,
            "redaction": "metadata_only",
        }
        return {name: value for name, value in shaped.items() if value is not None}


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Whom a run's ledger rows are about."""

    run_id: str
    actor: str
    agent: str
    session_key: str
    session_id: str


def run_started(who: RunIdentity, event_id: str, ts: int) -> AuditRow:
    """Once a run, at its first attempt."""
    return AuditRow(
        event_id, ts, "agent_run", "run.start", "started", None,
        who.actor, who.agent, who.session_key, who.session_id, who.run_id,
    )  # fmt: skip


def run_ended(who: RunIdentity, event_id: str, ts: int, outcome: Outcome, duration_ms: int | None) -> AuditRow:
    """Once a run, in the transaction that ends it."""
    status, code = outcome.ledger()
    return AuditRow(
        event_id, ts, "agent_run", "run.end", status, code,
        who.actor, who.agent, who.session_key, who.session_id, who.run_id, duration_ms=duration_ms,
    )  # fmt: skip
