"""T12: what nobody does any more is found and put back: lanes of dead workers, lost wakes, free slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, select, update

from app.domain.capacity import PROBATION
from app.domain.event import Event
from app.domain.outcome import aborted, interrupted
from app.store import tables as t
from app.store.dialect import lock_places
from app.store.statuses import is_running, is_waiting
from app.store.transaction.lane import Taker, hand_on
from app.store.transaction.proxy import end_by_proxy
from app.store.transaction.wake import Wake

PAGE = 200
"""Lanes put back in one step: a step stays short however many a dead worker left."""


class Held(NamedTuple):
    """A held lane as it was seen; the token changes with each adoption."""

    session_id: str
    token: int


@dataclass(frozen=True, slots=True)
class Swept:
    """What a pass changed, and how many lanes it put back. `more`: the page was full, pass again."""

    told: tuple[Event, ...]
    wakes: tuple[Wake, ...]
    count: int = 0
    more: bool = False


_living = select(t.worker.c.id).where(t.worker.c.dead_at.is_(None))
_held_by_dead = (
    select(t.session.c.id, t.session.c.lane_gen)
    .where(t.session.c.lane == "held", t.session.c.lane_owner.not_in(_living))
    .order_by(t.session.c.id)
    .limit(PAGE)
)
_held_by_me = select(t.session.c.id, t.session.c.lane_gen).where(
    t.session.c.lane == "held", t.session.c.lane_owner == bindparam("b_me")
)
_lock_held = (
    select(t.session)
    .where(
        t.session.c.id == bindparam("b_id"),
        t.session.c.lane == "held",
        t.session.c.lane_gen == bindparam("b_gen"),
    )
    .with_for_update(skip_locked=True)
)
_running = (
    select(t.run).where(t.run.c.session_id == bindparam("b_session"), is_running(t.run.c.status)).with_for_update()
)
_recover = update(t.run).where(t.run.c.id == bindparam("b_id")).values(status="recovering")
_more_to_do = (
    select(t.run.c.id)
    .where(
        t.run.c.session_id == bindparam("b_session"),
        is_waiting(t.run.c.status),
    )
    .limit(1)
)
_put_back = (
    update(t.session)
    .where(t.session.c.id == bindparam("b_id"))
    .values(
        lane=bindparam("b_lane"),
        lane_owner=None,
        lane_gen=t.session.c.lane_gen + 1,
        woken_at=bindparam("b_woken_at"),
        writer_run=None,
        writer_attempt=None,
    )
)
_woken_since = (
    select(t.session.c.id, t.session.c.lane_gen)
    .where(t.session.c.lane == "woken", t.session.c.woken_at <= bindparam("b_before"))
    .order_by(t.session.c.woken_at, t.session.c.id)
    .limit(bindparam("b_limit"))
)
_waiting_lanes = (
    select(t.session.c.waits_for).where(t.session.c.waiting_at.is_not(None)).where(t.session.c.lane == "waiting")
)


def sweep_dead(conn: Connection, taker: Taker, *, resume: bool) -> Swept:
    """(b): lanes held by dead workers. One whose row is locked now is left to the next pass."""
    lanes = [Held(*row) for row in conn.execute(_held_by_dead)]
    swept = _put_lanes_back(conn, lanes, taker, resume=resume)
    return Swept(swept.told, swept.wakes, more=len(lanes) == PAGE and bool(swept.count))


def held_lanes(conn: Connection, worker_id: str) -> list[Held]:
    """Lanes that this worker holds; those without a living drain are to be put back."""
    return [Held(*row) for row in conn.execute(_held_by_me, {"b_me": worker_id})]


def sweep_abandoned(conn: Connection, lanes: Sequence[Held], taker: Taker, *, resume: bool) -> Swept:
    """(b): lanes that this worker held and no drain of it lived for. One that was adopted since is left alone."""
    return _put_lanes_back(conn, lanes, taker, resume=resume)


def _put_lanes_back(conn: Connection, held: Sequence[Held], taker: Taker, *, resume: bool) -> Swept:
    told: list[Event] = []
    wakes: list[Wake] = []
    lanes: set[str] = set()
    count = 0
    for session_id, token in held:
        session = conn.execute(_lock_held, {"b_id": session_id, "b_gen": token}).mappings().one_or_none()
        if session is None:
            continue
        count += 1
        run = conn.execute(_running, {"b_session": session_id}).mappings().one_or_none()
        if run is not None:
            lanes.add(run["lane_name"])
            told += _stop_executing(conn, session, run, taker, resume=resume)
        more = conn.execute(_more_to_do, {"b_session": session_id}).first() is not None
        conn.execute(
            _put_back,
            {
                "b_id": session_id,
                "b_lane": "woken" if more else "idle",
                "b_woken_at": taker.now_ms if more else None,
            },
        )
        if more:
            wakes.append(Wake(session_id, session["lane_gen"] + 1))
    if lanes:
        lock_places(conn)
    for lane in (*sorted(lanes), PROBATION) if lanes else ():
        wakes += hand_on(conn, lane, taker)
    return Swept(tuple(told), tuple(wakes), count)


def _stop_executing(conn: Connection, session: Any, run: Any, taker: Taker, *, resume: bool) -> list[Event]:
    """The run of a lane whose executor is gone: an abort that was promised is kept; else it goes on, or ends."""
    if run["abort_at"] is not None:
        return end_by_proxy(conn, session, run, aborted(run["abort_code"]), taker.now_ms, taker.ids)
    if not resume:
        ended = interrupted("The service stopped while the run was executing, and `recovery.resume` is off.")
        return end_by_proxy(conn, session, run, ended, taker.now_ms, taker.ids)
    conn.execute(_recover, {"b_id": run["id"]})
    return []


def overdue_wakes(conn: Connection, before_ms: int, limit: int) -> list[Wake]:
    """(c): lanes woken at or before an instant and not adopted since; to be woken again with the same generation."""
    rows = conn.execute(_woken_since, {"b_before": before_ms, "b_limit": limit}).all()
    return [Wake(row.id, row.lane_gen) for row in rows]


def sweep_waiting(conn: Connection, taker: Taker) -> tuple[Wake, ...]:
    """(d): sessions that wait although a slot is free."""
    lanes = sorted(set(conn.execute(_waiting_lanes).scalars().all()))
    if lanes:
        lock_places(conn)
    wakes: list[Wake] = []
    for lane in lanes:
        wakes += hand_on(conn, lane, taker)
    return tuple(wakes)
