"""T9: a run or a session is stopped. From the COMMIT on, an executing run can only end as its abort code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from app.clock import Ids
from app.domain.event import Event
from app.domain.outcome import aborted
from app.domain.run import RunStatus
from app.errors import SessionNotFound
from app.store import tables as t
from app.store.queries.runs import absent
from app.store.statuses import is_open
from app.store.transaction.proxy import end_by_proxy


@dataclass(frozen=True, slots=True)
class Aborted:
    """What the wish did. `signal`: executing runs, to be told to stop; `told`: terminal events of withdrawn ones."""

    run_id: str
    status: RunStatus
    abort_at: int | None
    signal: tuple[str, ...]
    told: tuple[Event, ...]


_session_of_run = select(t.run.c.session_id, t.run.c.principal).where(t.run.c.id == bindparam("b_id"))
_lock_session = select(t.session).where(t.session.c.id == bindparam("b_id")).with_for_update()
_lock_key = select(t.session).where(t.session.c.key == bindparam("b_key")).with_for_update()
_lock_run = select(t.run).where(t.run.c.id == bindparam("b_id")).with_for_update()
_open_runs = (
    select(t.run)
    .where(
        t.run.c.session_id == bindparam("b_session"),
        is_open(t.run.c.status),
    )
    .order_by(t.run.c.prio, t.run.c.accept_no)
    .with_for_update()
)
_request = (
    update(t.run)
    .where(t.run.c.id == bindparam("b_id"), t.run.c.abort_at.is_(None))
    .values(abort_at=bindparam("b_now"), abort_code=bindparam("b_code"), abort_reason=bindparam("b_reason"))
)


@dataclass(frozen=True, slots=True)
class Wish:
    """Who wants it stopped, as what (`code` of domain.outcome.ABORT_CODES), and why, in the caller's own words."""

    principal: str
    code: str
    reason: str | None
    now_ms: int


def abort_run(conn: Connection, run_id: str, wish: Wish, ids: Ids) -> Aborted:
    """Raises RunNotFound, RunDeleted. An ended run is left as it was; a repeated wish changes nothing."""
    where = conn.execute(_session_of_run, {"b_id": run_id}).one_or_none()
    if where is None or where.principal != wish.principal:
        raise absent(conn, run_id, wish.principal)
    session = conn.execute(_lock_session, {"b_id": where.session_id}).mappings().one()
    run = conn.execute(_lock_run, {"b_id": run_id}).mappings().one_or_none()
    if run is None:
        raise absent(conn, run_id, wish.principal)
    return _abort(conn, session, run, wish, ids)


def abort_session(conn: Connection, key: str, wish: Wish, ids: Ids) -> list[Aborted]:
    """All open runs of a session in one transaction: those that wait first, then the executing one. SessionNotFound."""
    session = conn.execute(_lock_key, {"b_key": key}).mappings().one_or_none()
    if session is None or session["principal"] != wish.principal:
        raise SessionNotFound("No such session.")
    runs = conn.execute(_open_runs, {"b_session": session["id"]}).mappings().all()
    waiting = [run for run in runs if run["status"] != "running"]
    executing = [run for run in runs if run["status"] == "running"]
    return [_abort(conn, session, run, wish, ids) for run in (*waiting, *executing)]


def _abort(conn: Connection, session: Any, run: Any, wish: Wish, ids: Ids) -> Aborted:
    status = RunStatus(run["status"])
    if status.terminal:
        return Aborted(run["id"], status, run["abort_at"], (), ())
    requested_at = run["abort_at"] or wish.now_ms
    conn.execute(_request, {"b_id": run["id"], "b_now": wish.now_ms, "b_code": wish.code, "b_reason": wish.reason})
    if status is RunStatus.RUNNING:
        return Aborted(run["id"], status, requested_at, (run["id"],), ())
    outcome = aborted(run["abort_code"] or wish.code)
    stopped = {**run, "abort_reason": run["abort_reason"] if run["abort_at"] else wish.reason}
    told = end_by_proxy(conn, session, stopped, outcome, wish.now_ms, ids)
    return Aborted(run["id"], outcome.status, requested_at, (), tuple(told))
