"""Receipts: what became of an input, in one small object that the accept answer, the record and the stream share."""

from __future__ import annotations

from typing import Any

from app.clock import rfc3339
from app.domain.run import RunRecord, RunStatus


def queued_receipt(ahead: int, behind: str | None, since_ms: int) -> dict[str, Any]:
    """A run that waits: `position` runs of its session go first, `behind` is the one right before it."""
    return {"state": "queued", "position": ahead, "behind": behind, "since": rfc3339(since_ms)}


def receipt(record: RunRecord) -> dict[str, Any]:
    """What became of it by now."""
    if record.status is RunStatus.QUEUED:
        return queued_receipt(record.ahead, record.behind, record.accepted_at)
    if record.started_at is None:
        return {"state": "withdrawn", "since": rfc3339(record.ended_at or record.accepted_at)}
    if not record.status.terminal:
        state = "recovering" if record.status is RunStatus.RECOVERING else "started"
        return {"state": state, "attempt": record.attempt, "since": rfc3339(record.started_at)}
    return {"state": "ended", "attempt": record.attempt, "since": rfc3339(record.ended_at or record.started_at)}
