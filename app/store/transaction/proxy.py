"""Ending a run that no attempt executes: queued, recovering, or left by a dead worker."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, update

from app.clock import Ids, rfc3339
from app.domain import event as ev
from app.domain.audit import RunIdentity, run_ended
from app.domain.event import Event
from app.domain.outcome import Outcome
from app.domain.reply import reply_payloads
from app.domain.run import RunStatus
from app.store import tables as t
from app.store.transaction.calls import Known, give_up_calls
from app.store.transaction.ending import RunEnd, end_run
from app.store.transaction.entries import Entry, append_by_proxy
from app.store.transaction.ledger import put_audit, put_events

_count_events = (
    update(t.session)
    .where(t.session.c.id == bindparam("b_id"))
    .values(queue_seq=t.session.c.queue_seq + bindparam("b_count"), updated_at=bindparam("b_now"))
)
_queue_seq = t.session.select().with_only_columns(t.session.c.queue_seq).where(t.session.c.id == bindparam("b_id"))
_clear_claim = (
    update(t.session)
    .where(t.session.c.id == bindparam("b_id"), t.session.c.writer_run == bindparam("b_run"))
    .values(writer_run=None, writer_attempt=None)
)


def end_by_proxy(  # noqa: PLR0913
    conn: Connection, session: Any, run: Any, outcome: Outcome, now_ms: int, ids: Ids
) -> list[Event]:
    """Terminal state, events and ledger rows of a run whose session row is locked. Returns what is to be told.

    Their numbers stand above every one that a reader may have seen; numbers given out and not kept are named.
    """
    who = RunIdentity(run["id"], run["principal"], run["agent"], session["key"], run["transcript_id"])
    by_intent = outcome.status in (RunStatus.CANCELLED, RunStatus.TIMED_OUT)
    results, items = give_up_calls(conn, run, Known(who, now_ms, ids), stopped=by_intent)
    if results:
        append_by_proxy(conn, session, run, [Entry(ids.new(), message, now_ms) for message in results])
    begun = run["started_at"]
    ended_at = max(now_ms, begun or run["accepted_at"])
    times = {"startedAt": rfc3339(begun) if begun else None, "endedAt": rfc3339(ended_at)}
    items.append(ev.ended(outcome, times, None, run["abort_reason"]))
    events = _numbered(run, items, now_ms)
    end_run(
        conn,
        RunEnd(
            run_id=run["id"],
            outcome=outcome,
            ended_at=ended_at,
            seq=events[-1].seq,
            active_ms=run["active_ms"],
            stalled=run["stalled"],
            payloads=reply_payloads(None, outcome, show_reasoning=False),
            usage=None,
        ),
    )
    conn.execute(_count_events, {"b_id": session["id"], "b_now": now_ms, "b_count": len(events)})
    conn.execute(_clear_claim, {"b_id": session["id"], "b_run": run["id"]})
    first_q = int(conn.execute(_queue_seq, {"b_id": session["id"]}).scalar_one()) - len(events) + 1
    for place, event in enumerate(events):
        put_events(conn, [event], session["id"], take_no=None, q=first_q + place)
    duration_ms = ended_at - begun if begun else None
    put_audit(conn, run_ended(who, ids.new(), now_ms, outcome, duration_ms))
    return events


def _numbered(run: Any, items: list[ev.Told], now_ms: int) -> list[Event]:
    not_kept_from = run["seq_last"] + 1 if run["seq_high"] > run["seq_last"] else None
    return [
        Event(
            run["id"],
            run["seq_high"] + place,
            stream,
            now_ms,
            payload,
            not_kept_from=not_kept_from if place == 1 else None,
            terminal=terminal,
        )
        for place, (stream, payload, terminal) in enumerate(items, start=1)
    ]
