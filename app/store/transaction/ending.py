"""What every end writes into the run's own rows, whether an attempt settles it or somebody ends it in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, update

from app.domain.outcome import Outcome
from app.store import tables as t


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The terminal state. `seq` is the number of the terminal event; `reply` and `usage` are JSON values."""

    run_id: str
    outcome: Outcome
    ended_at: int
    seq: int
    active_ms: int
    stalled: int
    payloads: list[dict[str, Any]]
    usage: dict[str, Any] | None


_end_run = (
    update(t.run)
    .where(t.run.c.id == bindparam("b_id"))
    .values(
        status=bindparam("b_status"),
        outcome=bindparam("b_outcome"),
        stop_reason=bindparam("b_stop_reason"),
        ended_at=bindparam("b_ended_at"),
        seq_last=bindparam("b_seq"),
        seq_high=bindparam("b_seq"),
        active_ms=bindparam("b_active_ms"),
        stalled=bindparam("b_stalled"),
        open_message=None,
    )
)
_end_text = (
    update(t.run_text)
    .where(t.run_text.c.run_id == bindparam("b_id"))
    .values(reply=bindparam("b_reply"), error=bindparam("b_error"))
)


def end_run(conn: Connection, end: RunEnd) -> None:
    """The run's row and texts. The session is locked, the run is not terminal."""
    outcome = end.outcome
    conn.execute(
        _end_run,
        {
            "b_id": end.run_id,
            "b_status": outcome.status.value,
            "b_outcome": outcome.code,
            "b_stop_reason": outcome.stop_reason,
            "b_ended_at": end.ended_at,
            "b_seq": end.seq,
            "b_active_ms": end.active_ms,
            "b_stalled": end.stalled,
        },
    )
    error = outcome.error_json()
    conn.execute(
        _end_text,
        {
            "b_id": end.run_id,
            "b_reply": orjson.dumps({"payloads": end.payloads, "usage": end.usage}).decode(),
            "b_error": None if error is None else orjson.dumps(error).decode(),
        },
    )
