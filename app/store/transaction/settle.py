"""T10 and T11: an attempt gives its run its terminal outcome, once, or hands it over. Then the lane's next run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, update

from app.clock import rfc3339
from app.domain import event as ev
from app.domain.audit import run_ended
from app.domain.capacity import PROBATION
from app.domain.event import Event
from app.domain.message import Message, Usage
from app.domain.outcome import Outcome, aborted
from app.domain.reply import reply_payloads
from app.domain.run import RunStatus
from app.faults import Point, hit
from app.store import tables as t
from app.store.contract import AbortRequested, ClaimLost, Fenced
from app.store.dialect import lock_places
from app.store.transaction.calls import Known, give_up_calls
from app.store.transaction.ending import RunEnd, end_run
from app.store.transaction.entries import Claim, Entry, append_entries
from app.store.transaction.lane import Left, Taken, Taker, hand_on, identity, take
from app.store.transaction.ledger import put_audit, put_events
from app.store.transaction.wake import Wake


@dataclass(frozen=True, slots=True)
class Settlement:
    """What an attempt computed.

    `kept` are events told and not yet written; `last` is the last number told. `final` is the message the attempt
    ended with, whole or cut off (`final.aborted`); without one, `resets` take back what was told of the open message.
    """

    claim: Claim
    outcome: Outcome
    kept: tuple[Event, ...]
    last: int
    final: Entry | None
    resets: tuple[ev.Told, ...]
    told_thinking: bool
    usage: Usage
    show_reasoning: bool
    event_bytes_max: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The run has ended. `told` is to be made known, then `wakes` done, then `next` executed or left."""

    outcome: Outcome
    told: tuple[Event, ...]
    wakes: tuple[Wake, ...]
    next: Taken | Left


_lock_session = select(t.session).where(t.session.c.id == bindparam("b_id")).with_for_update()
_calls_at = select(func.max(t.tool_call.c.entry_no)).where(t.tool_call.c.run_id == t.run.c.id).scalar_subquery()
_lock_run = (
    select(t.run, _calls_at.label("calls_at"))
    .where(t.run.c.id == bindparam("b_id"), t.run.c.attempt == bindparam("b_attempt"), t.run.c.status == "running")
    .with_for_update()
)
_release = (
    update(t.session)
    .where(t.session.c.id == bindparam("b_id"))
    .values(
        updated_at=bindparam("b_now"),
        writer_run=bindparam("b_writer_run"),
        writer_attempt=bindparam("b_writer_attempt"),
    )
)


def settle(conn: Connection, work: Settlement, token: int, taker: Taker) -> Settled:
    """T10, with the next T3 unless the service drains. Raises Fenced: then nothing was settled.

    The outcome is that of a committed abort, else what was computed. Everything that tells of the end is in here:
    left-over deltas, the last message, terminal event, ledger row, status, the released claim, the next session's turn.
    """
    claim = work.claim
    session = conn.execute(_lock_session, {"b_id": claim.session_id}).mappings().one()
    run = conn.execute(_lock_run, {"b_id": claim.run_id, "b_attempt": claim.attempt}).mappings().one_or_none()
    if run is None:
        raise Fenced
    stopped = run["abort_at"] is not None
    outcome = aborted(run["abort_code"]) if stopped else work.outcome
    who = identity(session, run)
    by_intent = outcome.status in (RunStatus.CANCELLED, RunStatus.TIMED_OUT)
    results: list[Message] = []
    told_calls: list[ev.Told] = []
    if run["calls_at"] is not None:
        results, told_calls = give_up_calls(conn, run, Known(who, taker.now_ms, taker.ids), stopped=by_intent)
    final = _append_last(conn, work, results, taker, stopped=stopped)
    ended_at = max(taker.now_ms, run["started_at"])
    told = _closing_events(work, told_calls, final, outcome, run, ended_at, taker.now_ms)
    put_events(conn, (*work.kept, *told), claim.session_id, take_no=claim.take_no, q=None)
    progressed = final is not None and not final.aborted
    end_run(
        conn,
        RunEnd(
            run_id=run["id"],
            outcome=outcome,
            ended_at=ended_at,
            seq=told[-1].seq,
            active_ms=claim.active_ms,
            stalled=0 if progressed else run["stalled"],
            payloads=reply_payloads(
                None if final is None else final.message, outcome, show_reasoning=work.show_reasoning
            ),
            usage=work.usage.to_json(),
        ),
    )
    put_audit(conn, run_ended(who, taker.ids.new(), taker.now_ms, outcome, ended_at - run["started_at"]))
    wakes = _release_session(conn, session, run, taker)
    following = take(conn, session["id"], token, taker)
    hit(Point.SETTLE_BEFORE_COMMIT)
    return Settled(outcome, tuple(told), wakes, following)


def _append_last(
    conn: Connection, work: Settlement, results: list[Message], taker: Taker, *, stopped: bool
) -> Entry | None:
    """What is left to append, if the transcript is still this attempt's; a reset session keeps it out.

    Returns the final message as it was kept.
    """
    final = work.final
    if final is not None and stopped and not final.aborted:
        final = Entry(final.entry_id, final.message, final.created_at, aborted=True)
    entries = [Entry(taker.ids.new(), message, taker.now_ms) for message in results]
    if final is not None:
        entries.append(final)
    if not entries:
        return None
    try:
        append_entries(conn, work.claim, entries)
    except ClaimLost:
        return None
    return final


def _closing_events(  # noqa: PLR0913
    work: Settlement,
    told_calls: list[ev.Told],
    final: Entry | None,
    outcome: Outcome,
    run: Any,
    ended_at: int,
    now_ms: int,
) -> list[Event]:
    items = [*told_calls, *work.resets]
    if final is not None:
        message = final.message
        reason = message.stop_reason or "stop"
        if final.aborted and reason not in ("aborted", "error"):
            reason = "aborted"
        if work.told_thinking and message.thinking:
            items.append(
                ev.message_ended("thinking", message.message_id, message.thinking, reason, work.event_bytes_max)
            )
        items.append(ev.message_ended("assistant", message.message_id, message.text, reason, work.event_bytes_max))
    times: dict[str, str | None] = {"startedAt": rfc3339(run["started_at"]), "endedAt": rfc3339(ended_at)}
    usage = work.usage.to_json()
    items.append(ev.ended(outcome, times, {**usage, "byModel": {run["model"]: usage}}, run["abort_reason"]))
    return [
        Event(run["id"], work.last + place, stream, now_ms, payload, terminal=terminal)
        for place, (stream, payload, terminal) in enumerate(items, start=1)
    ]


def _release_session(conn: Connection, session: Any, run: Any, taker: Taker) -> tuple[Wake, ...]:
    """The claim, if it is mine, and the slot: whoever waited longest for it gets its turn."""
    mine = session["writer_run"] == run["id"] and session["writer_attempt"] == run["attempt"]
    conn.execute(
        _release,
        {
            "b_id": session["id"],
            "b_now": taker.now_ms,
            "b_writer_run": None if mine else session["writer_run"],
            "b_writer_attempt": None if mine else session["writer_attempt"],
        },
    )
    lock_places(conn)
    wakes = hand_on(conn, run["lane_name"], taker)
    if run["stalled"]:
        wakes += hand_on(conn, PROBATION, taker)
    return wakes


_leave = (
    update(t.session)
    .where(
        t.session.c.id == bindparam("b_id"),
        t.session.c.lane == "held",
        t.session.c.lane_gen == bindparam("b_token"),
    )
    .values(lane="woken", lane_owner=None, woken_at=bindparam("b_now"))
)
_recover = (
    update(t.run)
    .where(t.run.c.id == bindparam("b_id"))
    .values(
        status="recovering",
        stalled=t.run.c.stalled - 1,
        seq_last=bindparam("b_seq"),
        seq_high=bindparam("b_seq"),
        active_ms=bindparam("b_active_ms"),
    )
)


def let_go(  # noqa: PLR0913
    conn: Connection, claim: Claim, kept: tuple[Event, ...], last: int, token: int, taker: Taker
) -> tuple[Wake, ...]:
    """T11: all that was told is written, so no number is skipped; the run waits as `recovering`. Not charged.

    Returns the sessions that get the slot. Raises Fenced, and AbortRequested: such a run can only be settled.
    """
    session = conn.execute(_lock_session, {"b_id": claim.session_id}).mappings().one()
    run = conn.execute(_lock_run, {"b_id": claim.run_id, "b_attempt": claim.attempt}).mappings().one_or_none()
    if run is None:
        raise Fenced
    if run["abort_at"] is not None:
        raise AbortRequested
    put_events(conn, kept, claim.session_id, take_no=claim.take_no, q=None)
    conn.execute(_recover, {"b_id": run["id"], "b_seq": last, "b_active_ms": claim.active_ms})
    wakes = _release_session(conn, session, run, taker)
    conn.execute(_leave, {"b_id": session["id"], "b_token": token, "b_now": taker.now_ms})
    return wakes
