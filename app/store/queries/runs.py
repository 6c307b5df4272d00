"""Reads of runs: one record, a page of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, Row, Select, and_, bindparam, func, literal_column, or_, select

from app.domain.run import RunRecord, RunStatus
from app.errors import RunDeleted, RunNotFound
from app.store import tables as t
from app.store.queries.lending import Lending
from app.store.statuses import is_open

_other = t.run.alias("other")
_open_status = is_open(_other.c.status)
_before_me = and_(
    _other.c.session_id == t.run.c.session_id,
    _open_status,
    _other.c.id != t.run.c.id,
    or_(_other.c.status != literal_column("'queued'"), _other.c.accept_no < t.run.c.accept_no),
)
_ahead = select(func.count()).where(_before_me).correlate(t.run).scalar_subquery()
_behind = (
    select(_other.c.id)
    .where(_before_me)
    .order_by(_other.c.prio.desc(), _other.c.accept_no.desc())
    .limit(1)
    .correlate(t.run)
    .scalar_subquery()
)


def _records() -> Select[Any]:
    return (
        select(
            t.run,
            t.run_text.c.input,
            t.run_text.c.reply,
            t.run_text.c.error,
            t.run_text.c.borrows,
            t.session.c.key.label("session_key"),
            _ahead.label("ahead"),
            _behind.label("behind"),
        )
        .join(t.session, t.session.c.id == t.run.c.session_id)
        .join(t.run_text, t.run_text.c.run_id == t.run.c.id)
    )


_one = _records().where(t.run.c.id == bindparam("b_id"), t.run.c.principal == bindparam("b_principal"))


def record(conn: Connection, run_id: str, principal: str) -> RunRecord:
    """A run of the caller's. Raises RunNotFound, RunDeleted."""
    row = conn.execute(_one, {"b_id": run_id, "b_principal": principal}).one_or_none()
    if row is None:
        raise absent(conn, run_id, principal)
    return _record(conn, row)


_in_transcript = (
    select(t.transcript.c.entry_no)
    .join(t.session, t.session.c.transcript_id == t.transcript.c.transcript_id)
    .where(t.transcript.c.run_id == bindparam("b_id"), t.session.c.principal == bindparam("b_principal"))
    .limit(1)
)
_in_ledger = (
    select(t.audit.c.seq)
    .join(t.session, t.session.c.key == t.audit.c.session_key)
    .where(t.audit.c.run_id == bindparam("b_id"), t.session.c.principal == bindparam("b_principal"))
    .limit(1)
)


def absent(conn: Connection, run_id: str, principal: str) -> RunNotFound | RunDeleted:
    """What to say of a run that is not there: whether the caller's transcript or the ledger remembers it."""
    asked = {"b_id": run_id, "b_principal": principal}
    if any(conn.execute(trace, asked).first() is not None for trace in (_in_transcript, _in_ledger)):
        return RunDeleted("The run has ended and is not kept any more; its session has the transcript.")
    return RunNotFound("No such run.")


@dataclass(frozen=True, slots=True)
class RunFilter:
    """What a list of runs is restricted to. Times are inclusive milliseconds, of acceptance."""

    session_key: str | None = None
    status: tuple[str, ...] = ()
    agent: str | None = None
    since: int | None = None
    until: int | None = None


def page(
    conn: Connection, principal: str, wanted: RunFilter, limit: int, before: tuple[int, str] | None
) -> list[RunRecord]:
    """Newest first; `before` is the position of the last one given out. One more than asked tells that more follow."""
    query = _records().where(t.run.c.principal == principal)
    if wanted.session_key is not None:
        query = query.where(t.session.c.key == wanted.session_key)
    if wanted.status:
        query = query.where(t.run.c.status.in_(wanted.status))
    if wanted.agent is not None:
        query = query.where(t.run.c.agent == wanted.agent)
    if wanted.since is not None:
        query = query.where(t.run.c.accepted_at >= wanted.since)
    if wanted.until is not None:
        query = query.where(t.run.c.accepted_at <= wanted.until)
    if before is not None:
        at, ident = before
        query = query.where(or_(t.run.c.accepted_at < at, and_(t.run.c.accepted_at == at, t.run.c.id < ident)))
    query = query.order_by(t.run.c.accepted_at.desc(), t.run.c.id.desc()).limit(limit)
    return [_record(conn, row) for row in conn.execute(query).all()]


def _record(conn: Connection, row: Row[Any]) -> RunRecord:
    told = Lending(conn, row.id).restored(row.reply) if row.borrows and row.reply is not None else row.reply
    reply = None if told is None else orjson.loads(told)
    status = RunStatus(row.status)
    error = None if row.error is None else orjson.loads(row.error)
    return RunRecord(
        run_id=row.id,
        session_key=row.session_key,
        session_id=row.transcript_id,
        agent=row.agent,
        status=status,
        outcome=None if error is not None else row.outcome,
        stop_reason=row.stop_reason,
        model=row.model,
        attempt=row.attempt,
        accept_no=row.accept_no,
        ahead=row.ahead,
        behind=row.behind,
        accepted_at=row.accepted_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        abort_at=row.abort_at,
        abort_reason=row.abort_reason,
        last_seq=row.seq_last,
        label=row.label,
        metadata=orjson.loads(row.input)["metadata"],
        error=error,
        reply=None if reply is None else {"payloads": reply["payloads"]},
        usage=None if reply is None else reply["usage"],
    )
