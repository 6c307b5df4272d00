"""Reads of the ledger: a page, newest first."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from app.domain.audit import AuditRow
from app.store import tables as t


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """What a page of the ledger is restricted to. Times are inclusive milliseconds."""

    agent: str | None = None
    session_key: str | None = None
    run_id: str | None = None
    kind: str | None = None
    status: str | None = None
    direction: str | None = None
    channel: str | None = None
    since: int | None = None
    until: int | None = None


def page(conn: Connection, principal: str, wanted: AuditFilter, limit: int, before: int | None) -> list[AuditRow]:
    """Rows with a number below `before`, newest first."""
    query = select(t.audit).where(t.audit.c.actor == principal)
    for column, value in (
        (t.audit.c.agent, wanted.agent),
        (t.audit.c.session_key, wanted.session_key),
        (t.audit.c.run_id, wanted.run_id),
        (t.audit.c.kind, wanted.kind),
        (t.audit.c.status, wanted.status),
        (t.audit.c.direction, wanted.direction),
        (t.audit.c.channel, wanted.channel),
    ):
        if value is not None:
            query = query.where(column == value)
    if wanted.since is not None:
        query = query.where(t.audit.c.ts >= wanted.since)
    if wanted.until is not None:
        query = query.where(t.audit.c.ts <= wanted.until)
    if before is not None:
        query = query.where(t.audit.c.seq < before)
    query = query.order_by(t.audit.c.seq.desc()).limit(limit)
    return [
        AuditRow(
            event_id=row.event_id,
            ts=row.ts,
            kind=row.kind,
            action=row.action,
            status=row.status,
            code=row.code,
            actor=row.actor,
            agent=row.agent,
            session_key=row.session_key,
            session_id=row.session_id,
            run_id=row.run_id,
            call_ref=row.call_ref,
            tool_name=row.tool_name,
            duration_ms=row.duration_ms,
            seq=row.seq,
        )
        for row in conn.execute(query)
    ]
