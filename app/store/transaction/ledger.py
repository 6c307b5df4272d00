"""Rows of the audit ledger and of the event log, as the steps write them."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, insert

from app.domain.audit import AuditRow
from app.domain.event import Event
from app.store import tables as t
from app.store.dialect import insert_new

_insert_events = insert(t.run_event)


def put_audit(conn: Connection, row: AuditRow) -> None:
    """Keep a row, once for its run, call and action."""
    conn.execute(
        insert_new(conn, t.audit),
        {
            "event_id": row.event_id,
            "ts": row.ts,
            "kind": row.kind,
            "action": row.action,
            "status": row.status,
            "code": row.code,
            "actor": row.actor,
            "agent": row.agent,
            "session_key": row.session_key,
            "session_id": row.session_id,
            "run_id": row.run_id,
            "call_ref": row.call_ref,
            "tool_name": row.tool_name,
            "duration_ms": row.duration_ms,
        },
    )


def put_events(
    conn: Connection, events: Iterable[Event], session_id: str, *, take_no: int | None, q: int | None
) -> None:
    """Insert what is or will be told. Raises IntegrityError when a number is taken or a second terminal comes."""
    rows = [
        {
            "run_id": event.run_id,
            "seq": event.seq,
            "first_seq": event.first_seq,
            "not_kept_from": event.not_kept_from,
            "session_id": session_id,
            "take_no": take_no,
            "q": q,
            "stream": event.stream,
            "terminal": int(event.terminal),
            "ts": event.ts,
            "payload": event.payload.decode(),
        }
        for event in events
    ]
    if rows:
        conn.execute(_insert_events, rows)
