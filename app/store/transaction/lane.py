"""T2 and T3: a drain adopts a lane, takes its next run, or leaves the lane idle or waiting. And whose turn it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, func, literal_column, select, update

from app.clock import Ids
from app.domain import event as ev
from app.domain.audit import RunIdentity, run_started
from app.domain.capacity import PROBATION, STALLED_MAX, STALLED_ON_PROBATION, Capacity, may_take
from app.domain.event import Event
from app.domain.outcome import interrupted
from app.domain.run import Attempt, RunInput
from app.faults import Point, hit
from app.store import tables as t
from app.store.dialect import lock_places
from app.store.statuses import is_open, is_running
from app.store.transaction.ledger import put_audit, put_events
from app.store.transaction.proxy import end_by_proxy
from app.store.transaction.wake import Wake

NOT_WAITING = 2**62
"""Place of a session that does not wait: everybody who does has waited longer."""


@dataclass(frozen=True, slots=True)
class Taker:
    """Who takes, with what: the worker's id, the deployment's capacity, the instant, and where ids come from.

    `draining`: nothing new begins any more; what is left is for whoever comes next.
    """

    worker_id: str
    capacity: Capacity
    now_ms: int
    ids: Ids
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """A run to execute. `told` is what the step made known; `wakes` are lanes that got a turn by it."""

    attempt: Attempt
    told: tuple[Event, ...]
    wakes: tuple[Wake, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """Nothing to execute now. `why`: fenced, idle, waiting, draining. `told` may end runs that had no attempt left."""

    why: str
    told: tuple[Event, ...] = ()
    wakes: tuple[Wake, ...] = ()


_adopt = (
    update(t.session)
    .where(
        t.session.c.id == bindparam("b_id"),
        t.session.c.lane == "woken",
        t.session.c.lane_gen == bindparam("b_gen"),
    )
    .values(lane="held", lane_owner=bindparam("b_owner"), lane_gen=bindparam("b_gen") + 1, woken_at=None)
)
_lock = select(t.session).where(t.session.c.id == bindparam("b_id")).with_for_update()
_next_run = (
    select(t.run, t.run_text.c.input)
    .join(t.run_text, t.run_text.c.run_id == t.run.c.id)
    .where(
        t.run.c.session_id == bindparam("b_session"),
        is_open(t.run.c.status),
    )
    .order_by(
        literal_column("CASE run.status WHEN 'running' THEN 0 WHEN 'recovering' THEN 1 ELSE 2 END"),
        t.run.c.prio,
        t.run.c.accept_no,
    )
    .limit(1)
)
_running_in_lane = (
    select(func.count()).select_from(t.run).where(t.run.c.lane_name == bindparam("b_lane"), is_running(t.run.c.status))
)
_running_on_probation = (
    select(func.count()).select_from(t.run).where(t.run.c.stalled >= STALLED_ON_PROBATION, is_running(t.run.c.status))
)
_waiting_longer = (
    select(func.count())
    .select_from(t.session)
    .where(
        t.session.c.waits_for == bindparam("b_lane"),
        t.session.c.waiting_at.is_not(None),
        t.session.c.id != bindparam("b_id"),
        (t.session.c.waiting_at < bindparam("b_since"))
        | ((t.session.c.waiting_at == bindparam("b_since")) & (t.session.c.id < bindparam("b_id"))),
    )
)
_last_waiting = select(func.max(t.session.c.waiting_at)).where(
    t.session.c.waits_for == bindparam("b_lane"), t.session.c.waiting_at.is_not(None)
)
_set_lane = (
    update(t.session)
    .where(t.session.c.id == bindparam("b_id"))
    .values(
        lane=bindparam("b_lane"),
        lane_owner=None,
        waits_for=bindparam("b_waits_for"),
        waiting_at=bindparam("b_waiting_at"),
    )
)
_take_run = (
    update(t.run)
    .where(t.run.c.id == bindparam("b_id"))
    .values(
        status="running",
        attempt=bindparam("b_attempt"),
        stalled=t.run.c.stalled + 1,
        take_no=bindparam("b_take_no"),
        seq_last=bindparam("b_seq"),
        seq_high=bindparam("b_seq"),
        started_at=bindparam("b_started_at"),
        open_message=None,
    )
)
_take_session = (
    update(t.session)
    .where(t.session.c.id == bindparam("b_id"))
    .values(
        takes=bindparam("b_take_no"),
        writer_run=bindparam("b_run"),
        writer_attempt=bindparam("b_attempt"),
        waits_for=None,
        waiting_at=None,
    )
)
_first_entry = select(t.transcript.c.entry_no).where(t.transcript.c.run_id == bindparam("b_run")).limit(1)
_leave_woken = (
    update(t.session)
    .where(t.session.c.id == bindparam("b_id"))
    .values(lane="woken", lane_owner=None, woken_at=bindparam("b_now"))
)
_waiters = (
    select(t.session.c.id, t.session.c.lane, t.session.c.lane_gen)
    .where(t.session.c.waits_for == bindparam("b_lane"), t.session.c.waiting_at.is_not(None))
    .order_by(t.session.c.waiting_at, t.session.c.id)
    .limit(bindparam("b_limit"))
    .with_for_update(skip_locked=True)
)
_wake_waiter = (
    update(t.session)
    .where(t.session.c.id == bindparam("b_id"), t.session.c.lane == "waiting")
    .values(lane="woken", woken_at=bindparam("b_now"))
)


def adopt_and_take(conn: Connection, session_id: str, generation: int, taker: Taker) -> Taken | Left:
    """A drain begins: T2, then the first T3. A late or repeated wake ends quietly as Left("fenced")."""
    adopted = conn.execute(_adopt, {"b_id": session_id, "b_gen": generation, "b_owner": taker.worker_id})
    if adopted.rowcount == 0:
        return Left("fenced")
    return take(conn, session_id, generation + 1, taker)


def _holds(session: Any, token: int, worker_id: str) -> bool:
    return bool(session["lane"] == "held" and session["lane_gen"] == token and session["lane_owner"] == worker_id)


def take(conn: Connection, session_id: str, token: int, taker: Taker) -> Taken | Left:
    """T3: the next run of a lane that this drain holds, or leave it."""
    told: list[Event] = []
    while True:
        session = conn.execute(_lock, {"b_id": session_id}).mappings().one_or_none()
        if session is None or not _holds(session, token, taker.worker_id):
            return Left("fenced", tuple(told))
        run = conn.execute(_next_run, {"b_session": session_id}).mappings().one_or_none()
        if run is None:
            return _leave_idle(conn, session, taker, told)
        assert run["status"] != "running", "the lane's holder has settled before it takes again"
        if taker.draining:
            conn.execute(_leave_woken, {"b_id": session_id, "b_now": taker.now_ms})
            return Left("draining", tuple(told))
        if run["stalled"] >= STALLED_MAX:
            ended = interrupted(f"The run was interrupted {run['stalled']} times without progress.")
            told += end_by_proxy(conn, session, run, ended, taker.now_ms, taker.ids)
            continue
        lock_places(conn)
        lane = _lane_without_room(conn, session, run, taker)
        if lane is not None:
            return _leave_waiting(conn, session, lane, taker, told)
        return _give_out(conn, session, run, token, taker, told)


def _lane_without_room(conn: Connection, session: Any, run: Any, taker: Taker) -> str | None:
    """The lane that the session must wait for, or None when it may take now."""
    if run["stalled"] + 1 >= STALLED_ON_PROBATION and conn.execute(_running_on_probation).scalar_one() > 0:
        return PROBATION
    lane = str(run["lane_name"])
    running = conn.execute(_running_in_lane, {"b_lane": lane}).scalar_one()
    free = taker.capacity.of(lane) - running
    if free <= 0:
        return lane
    since = session["waiting_at"] if session["waits_for"] == lane else None
    longer = conn.execute(
        _waiting_longer,
        {"b_lane": lane, "b_id": session["id"], "b_since": NOT_WAITING if since is None else since},
    ).scalar_one()
    return None if may_take(free, longer) else lane


def _give_out(  # noqa: PLR0913
    conn: Connection, session: Any, run: Any, token: int, taker: Taker, told: list[Event]
) -> Taken:
    attempt = run["attempt"] + 1
    take_no = session["takes"] + 1
    started_at = run["started_at"] or max(taker.now_ms, run["accepted_at"])
    first = attempt == 1
    items = [ev.started(attempt, started_at)] if first else _resumption(run, attempt, started_at)
    seq = run["seq_high"]
    not_kept_from = run["seq_last"] + 1 if run["seq_high"] > run["seq_last"] else None
    begun: list[Event] = []
    for stream, payload, terminal in items:
        seq += 1
        begun.append(
            Event(run["id"], seq, stream, taker.now_ms, payload, not_kept_from=not_kept_from, terminal=terminal)
        )
        not_kept_from = None
    conn.execute(
        _take_run,
        {
            "b_id": run["id"],
            "b_attempt": attempt,
            "b_take_no": take_no,
            "b_seq": seq,
            "b_started_at": started_at,
        },
    )
    conn.execute(
        _take_session,
        {"b_id": session["id"], "b_take_no": take_no, "b_run": run["id"], "b_attempt": attempt},
    )
    put_events(conn, begun[:1], session["id"], take_no=take_no, q=session["queue_seq"])
    put_events(conn, begun[1:], session["id"], take_no=take_no, q=None)
    if first:
        put_audit(conn, run_started(identity(session, run), taker.ids.new(), taker.now_ms))
    taken = {**run, "attempt": attempt, "take_no": take_no, "seq_last": seq, "started_at": started_at}
    return Taken(_attempt(conn, session, taken, token), (*told, *begun))


def _resumption(run: Any, attempt: int, started_at: int) -> list[ev.Told]:
    open_message = run["open_message"]
    if not open_message:
        return [ev.resumed(attempt, started_at, [])]
    streams = ["assistant"]
    if RunInput.from_json(orjson.loads(run["input"])).reasoning == "stream":
        streams.append("thinking")
    resets = [ev.message_reset(stream, open_message) for stream in streams]
    return [ev.resumed(attempt, started_at, [open_message]), *resets]


def _attempt(conn: Connection, session: Any, run: Any, token: int) -> Attempt:
    first = run["attempt"] == 1
    has_input = not first and conn.execute(_first_entry, {"b_run": run["id"]}).first() is not None
    return Attempt(
        run_id=run["id"],
        attempt=run["attempt"],
        session_id=session["id"],
        session_key=session["key"],
        transcript_id=session["transcript_id"],
        principal=run["principal"],
        agent=run["agent"],
        lane_token=token,
        take_no=run["take_no"],
        seq_last=run["seq_last"],
        next_entry=session["next_entry"],
        has_input=has_input,
        active_ms=run["active_ms"],
        started_at=run["started_at"],
        input=RunInput.from_json(orjson.loads(run["input"])),
    )


def identity(session: Any, run: Any) -> RunIdentity:
    """Whom the run's ledger rows are about."""
    return RunIdentity(run["id"], run["principal"], run["agent"], session["key"], run["transcript_id"])


def _leave_idle(conn: Connection, session: Any, taker: Taker, told: list[Event]) -> Left:
    conn.execute(_set_lane, {"b_id": session["id"], "b_lane": "idle", "b_waits_for": None, "b_waiting_at": None})
    # A session that was woken for a slot and no longer needs it passes its turn on.
    wakes: tuple[Wake, ...] = ()
    if session["waits_for"]:
        lock_places(conn)
        wakes = hand_on(conn, session["waits_for"], taker)
    hit(Point.LANE_IDLE)
    return Left("idle", tuple(told), wakes)


def _leave_waiting(conn: Connection, session: Any, lane: str, taker: Taker, told: list[Event]) -> Left:
    waiting_at = session["waiting_at"] if session["waits_for"] == lane else None
    if waiting_at is None:
        # A place in the line, whatever the clock does: behind all who wait.
        newest = conn.execute(_last_waiting, {"b_lane": lane}).scalar_one()
        waiting_at = max(taker.now_ms, (newest or 0) + 1)
    conn.execute(
        _set_lane,
        {"b_id": session["id"], "b_lane": "waiting", "b_waits_for": lane, "b_waiting_at": waiting_at},
    )
    return Left("waiting", tuple(told))


def hand_on(conn: Connection, lane: str, taker: Taker) -> tuple[Wake, ...]:
    """Wake the longest waiting sessions of a lane, as many as it has free slots. Harmless when repeated.

    The caller has the lock of the places. A waiter whose row is locked is left to the next sweep.
    """
    cap = taker.capacity.of(lane)
    waiters = conn.execute(_waiters, {"b_lane": lane, "b_limit": cap}).all()
    if not waiters:
        return ()
    if lane == PROBATION:
        running = conn.execute(_running_on_probation).scalar_one()
    else:
        running = conn.execute(_running_in_lane, {"b_lane": lane}).scalar_one()
    wakes = []
    for waiter in waiters[: max(0, cap - running)]:
        if waiter.lane == "waiting":
            conn.execute(_wake_waiter, {"b_id": waiter.id, "b_now": taker.now_ms})
            wakes.append(Wake(waiter.id, waiter.lane_gen))
    return tuple(wakes)
