"""Reads of sessions: one by key or by its wire id, a page of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, exists, func, or_, select

from app.store import tables as t
from app.store.dialect import holds
from app.store.statuses import is_executing, is_open, is_queued


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as people see it. Times are milliseconds since the epoch."""

    session_key: str
    session_id: str
    agent: str
    created_at: int
    updated_at: int
    last_input_at: int
    queued_runs: int
    active_run: str | None
    entries: int


_open = is_open(t.run.c.status)
_active = is_executing(t.run.c.status)
_active_run = (
    select(t.run.c.id)
    .where(t.run.c.session_id == t.session.c.id, _active)
    .limit(1)
    .correlate(t.session)
    .scalar_subquery()
)
_queued_runs = (
    select(func.count())
    .select_from(t.run)
    .where(t.run.c.session_id == t.session.c.id, is_queued(t.run.c.status))
    .correlate(t.session)
    .scalar_subquery()
)
_records = select(t.session, _active_run.label("active_run"), _queued_runs.label("queued_runs"))
_by_key = _records.where(t.session.c.key == bindparam("b_key"), t.session.c.principal == bindparam("b_principal"))
_by_id = select(t.session.c.key, t.session.c.agent).where(
    t.session.c.transcript_id == bindparam("b_id"), t.session.c.principal == bindparam("b_principal")
)


def record(conn: Connection, key: str, principal: str) -> SessionRecord | None:
    """A session of the caller's, or None."""
    row = conn.execute(_by_key, {"b_key": key, "b_principal": principal}).one_or_none()
    return None if row is None else _record(row)


def named_by_id(conn: Connection, session_id: str, principal: str) -> tuple[str, str] | None:
    """(key, agent) of the caller's session whose current transcript `session_id` is, or None."""
    row = conn.execute(_by_id, {"b_id": session_id, "b_principal": principal}).one_or_none()
    return None if row is None else (row.key, row.agent)


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """What a list of sessions is restricted to; `search` is a part of the key, exact in case."""

    agent: str | None = None
    search: str | None = None
    active: bool | None = None


def page(
    conn: Connection, principal: str, wanted: SessionFilter, limit: int, before: tuple[int, str] | None
) -> list[tuple[int, str, SessionRecord]]:
    """Last created first: (created at, row id, record). A session's place never moves, so paging skips none."""
    query = _records.where(t.session.c.principal == principal)
    if wanted.agent is not None:
        query = query.where(t.session.c.agent == wanted.agent)
    if wanted.search is not None:
        query = query.where(holds(conn, t.session.c.key, wanted.search))
    if wanted.active is not None:
        busy = exists(select(t.run.c.id).where(t.run.c.session_id == t.session.c.id, _open).correlate(t.session))
        query = query.where(busy if wanted.active else ~busy)
    if before is not None:
        at, ident = before
        query = query.where(
            or_(t.session.c.created_at < at, and_(t.session.c.created_at == at, t.session.c.id < ident))
        )
    query = query.order_by(t.session.c.created_at.desc(), t.session.c.id.desc()).limit(limit)
    return [(row.created_at, row.id, _record(row)) for row in conn.execute(query)]


def _record(row: Row[Any]) -> SessionRecord:
    return SessionRecord(
        session_key=row.key,
        session_id=row.transcript_id,
        agent=row.agent,
        created_at=row.created_at,
        updated_at=row.updated_at,
        last_input_at=row.last_input_at,
        queued_runs=row.queued_runs,
        active_run=row.active_run,
        entries=row.next_entry - 1,
    )
