"""Wire forms of what the store tells: records of runs, sessions and transcript entries, the wait result."""

from __future__ import annotations

from typing import Any

from app.clock import rfc3339
from app.domain import tool_event
from app.domain.masking import Masker
from app.domain.message import Part, ToolCallPart
from app.domain.outcome import WAIT_STATUS, wait_error
from app.domain.receipt import receipt
from app.domain.run import RunRecord
from app.store.queries.sessions import SessionRecord
from app.store.queries.transcript import TranscriptEntry


def _when(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)


def links(run_id: str) -> dict[str, str]:
    base = f"/api/v1/runs/{run_id}"
    return {"self": base, "events": f"{base}/events", "wait": f"{base}/wait", "abort": f"{base}/abort"}


def run_json(record: RunRecord) -> dict[str, Any]:
    """`GET /runs/{runId}` and the items of the list."""
    return {
        "runId": record.run_id,
        "sessionKey": record.session_key,
        "sessionId": record.session_id,
        "agent": record.agent,
        "status": record.status.wire,
        "outcome": record.outcome,
        "stopReason": record.stop_reason,
        "receipt": receipt(record),
        "acceptedAt": rfc3339(record.accepted_at),
        "startedAt": _when(record.started_at),
        "endedAt": _when(record.ended_at),
        "abortRequestedAt": _when(record.abort_at),
        "abortReason": record.abort_reason,
        "attempt": record.attempt,
        "model": record.model,
        "error": record.error,
        "reply": record.reply,
        "usage": record.usage,
        "label": record.label,
        "metadata": record.metadata,
        "lastSeq": record.last_seq,
        "links": links(record.run_id),
    }


def wait_json(record: RunRecord, *, draining: bool = False) -> dict[str, Any]:
    """The wait result, which `done` carries too. An expired wait says nothing but that."""
    if not record.status.terminal:
        shaped: dict[str, Any] = {"runId": record.run_id, "status": "timeout", "waitExpired": True}
        if draining:
            shaped["reason"] = "draining"
        return shaped
    shaped = {
        "runId": record.run_id,
        "status": WAIT_STATUS[record.status],
        "outcome": record.outcome,
        "stopReason": record.stop_reason,
        "startedAt": _when(record.started_at),
        "endedAt": _when(record.ended_at),
        "reply": record.reply,
        "usage": record.usage,
        "waitExpired": False,
    }
    error = wait_error(record.status, record.outcome, record.error)
    if error is not None:
        shaped["error"] = error
    return shaped


def session_json(record: SessionRecord) -> dict[str, Any]:
    """`GET /sessions/{sessionKey}` and the items of the list."""
    return {
        "sessionKey": record.session_key,
        "sessionId": record.session_id,
        "agent": record.agent,
        "createdAt": rfc3339(record.created_at),
        "updatedAt": rfc3339(record.updated_at),
        "lastInputAt": rfc3339(record.last_input_at),
        "activeRun": record.active_run,
        "queuedRuns": record.queued_runs,
        "entries": record.entries,
    }


def entry_json(entry: TranscriptEntry, masker: Masker) -> dict[str, Any]:
    """An item of a transcript. What providers want back (signatures, their own ids) is nobody else's business."""
    message = entry.message
    parts = [_part_json(part, masker) for part in message.parts]
    shaped: dict[str, Any] = {
        "entryId": entry.entry_id,
        "entryNo": entry.entry_no,
        "kind": entry.kind,
        "role": message.role,
        "runId": entry.run_id,
        "messageId": message.message_id,
        "createdAt": rfc3339(entry.created_at),
        "aborted": entry.aborted,
        "parts": parts,
    }
    if message.stop_reason is not None:
        shaped["stopReason"] = message.stop_reason
    if message.model is not None:
        shaped["model"] = message.model
    if message.usage is not None:
        shaped["usage"] = message.usage.to_json()
    return shaped


def _part_json(part: Part, masker: Masker) -> dict[str, Any]:
    shaped = {name: value for name, value in part.to_json().items() if name not in ("detail", "providerId")}
    if isinstance(part, ToolCallPart):
        shaped["args"] = masker.args(tool_event.arguments(part))
    return shaped
