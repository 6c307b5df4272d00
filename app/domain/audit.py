"""Rows of the metadata-only ledger, projected from lifecycle events. Nothing here can hold content."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Any

from app.clock import rfc3339
from app.domain.message import ToolCallPart
from app.domain.outcome import Outcome
from app.domain.tool_call import CallResult

KINDS = ("agent_run", "tool_action", "message", "approval")
STATUSES = ("started", "succeeded", "failed", "cancelled", "timed_out", "blocked", "unknown")


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One row. `seq` is None until it is stored; `call_ref` is empty for a run's own rows.

    `tool_name` is that of a tool of the service, never what a model made up.
    """

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
    tool_name: str | None = None
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
            "toolName": self.tool_name,
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


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """Which call a ledger row is about: a reference that tells nothing, and the tool's name if there is such a tool."""

    ref: str
    tool_name: str | None


def call_started(who: RunIdentity, call: CallIdentity, event_id: str, ts: int) -> AuditRow:
    """Once a call, in the step that makes it durable that it is about to start."""
    return AuditRow(
        event_id, ts, "tool_action", "tool.start", "started", None,
        who.actor, who.agent, who.session_key, who.session_id, who.run_id, call.ref, call.tool_name,
    )  # fmt: skip


def call_ended(who: RunIdentity, call: CallIdentity, event_id: str, ts: int, result: CallResult) -> AuditRow:
    """Once a call, with its result. One that was never started has no other row."""
    return AuditRow(
        event_id, ts, "tool_action", "tool.end", result.ending.status, result.code,
        who.actor, who.agent, who.session_key, who.session_id, who.run_id, call.ref, call.tool_name,
        None if result.skipped else result.duration_ms,
    )  # fmt: skip


def result_dropped(who: RunIdentity, call: CallIdentity, event_id: str, ts: int) -> AuditRow:
    """A tool that was no longer waited for has returned after all; what it returned is kept nowhere."""
    return AuditRow(
        event_id, ts, "tool_action", "tool.result-dropped", "unknown", "unknown",
        who.actor, who.agent, who.session_key, who.session_id, who.run_id, call.ref, call.tool_name,
    )  # fmt: skip


class CallNames:
    """How the ledger names calls: by a keyed hash of the id, and by the tool's name where there is such a tool."""

    def __init__(self, key: bytes, tools: frozenset[str]) -> None:
        self._key = key
        self._tools = tools

    def of(self, call: ToolCallPart) -> CallIdentity:
        ref = hmac.digest(self._key, call.tool_call_id.encode(), "sha256").hex()[:32]
        return CallIdentity(ref, call.name if call.name in self._tools else None)
