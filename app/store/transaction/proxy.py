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
from app.store import tables as t
from app.store.transaction.ending import RunEnd, end_run
from app.store.transaction.ledger import put_audit, put_events

_count_event = (
    update(t.session)
    .where(t.session.c.id == bindparam("b_id"))
    .values(queue_seq=t.session.c.queue_seq + 1, updated_at=bindparam("b_now"))
)
_clear_claim = (
    update(t.session)
    .where(t.session.c.id == bindparam("b_id"), t.session.c.writer_run == bindparam("b_run"))
    .values(writer_run=None, writer_attempt=None)
)


def end_by_proxy(  # noqa: PLR0913
    conn: Connection, session: Any, run: Any, outcome: Outcome, now_ms: int, ids: Ids
) -> list[Event]:
    """Terminal state, event and ledger row of a run whose session row is locked. Returns what is to be told.

    Its number stands above every one that a reader may have seen; numbers that were given out and not kept are named.
    """
    begun = run["started_at"]
    ended_at = max(now_ms, begun or run["accepted_at"])
    not_kept_from = run["seq_last"] + 1 if run["seq_high"] > run["seq_last"] else None
    times = {"startedAt": rfc3339(begun) if begun else None, "endedAt": rfc3339(ended_at)}
    stream, payload, terminal = ev.ended(outcome, times, None, run["abort_reason"])
    event = Event(
        run["id"], run["seq_high"] + 1, stream, now_ms, payload, not_kept_from=not_kept_from, terminal=terminal
    )
    end_run(
        conn,
        RunEnd(
            run_id=run["id"],
            outcome=outcome,
            ended_at=ended_at,
            seq=event.seq,
            active_ms=run["active_ms"],
            stalled=run["stalled"],
            payloads=reply_payloads(None, outcome, show_reasoning=False),
            usage=None,
        ),
    )
    conn.execute(_count_event, {"b_id": session["id"], "b_now": now_ms})
    conn.execute(_clear_claim, {"b_id": session["id"], "b_run": run["id"]})
    put_events(conn, [event], session["id"], take_no=None, q=_next_q(conn, session))
    who = RunIdentity(run["id"], run["principal"], run["agent"], session["key"], run["transcript_id"])
    duration_ms = ended_at - begun if begun else None
    put_audit(conn, run_ended(who, ids.new(), now_ms, outcome, duration_ms))
    return [event]


_queue_seq = t.session.select().with_only_columns(t.session.c.queue_seq).where(t.session.c.id == bindparam("b_id"))


def _next_q(conn: Connection, session: Any) -> int:
    """The number that `_count_event` has just given out under the session's lock."""
    return int(conn.execute(_queue_seq, {"b_id": session["id"]}).scalar_one())
