"""Runs that have been kept long enough go, with their events and keys, in small steps; transcript and ledger stay."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, func, select, update

from app.faults import Point, hit
from app.store import tables as t

STEP_RUNS = 32
STEP_ROWS = 1_000
"""Of one step: runs, and rows of events, so that nothing else waits long behind it."""

# By acceptance, which has an index: what was accepted before but ended later is few, and passed over.
_kept_long_enough = (
    select(t.run.c.id)
    .where(
        t.run.c.accepted_at <= bindparam("b_before"),
        t.run.c.ended_at <= bindparam("b_before"),
        t.run.c.folded_at.is_not(None),
    )
    .order_by(t.run.c.accepted_at, t.run.c.id)
    .limit(STEP_RUNS)
    .with_for_update(skip_locked=True)
)
_count = select(func.count()).select_from(t.run_event).where(t.run_event.c.run_id == bindparam("b_run"))
_nth = (
    select(t.run_event.c.first_seq, t.run_event.c.not_kept_from, t.run_event.c.seq)
    .where(t.run_event.c.run_id == bindparam("b_run"))
    .order_by(t.run_event.c.seq)
    .offset(bindparam("b_rows"))
    .limit(1)
)
_drop_before = delete(t.run_event).where(
    t.run_event.c.run_id == bindparam("b_run"), t.run_event.c.seq < bindparam("b_seq")
)
_begin_at = update(t.run).where(t.run.c.id == bindparam("b_run")).values(seq_first=bindparam("b_first"))
_rows_of_run = tuple(
    delete(table).where(table.c.run_id == bindparam("b_run"))
    for table in (t.run_event, t.tool_call, t.run_text, t.idem)
)
_run = delete(t.run).where(t.run.c.id == bindparam("b_run"))


def remove_runs(conn: Connection, before_ms: int) -> bool:
    """Remove some runs that ended at or before an instant and are folded, or a part of one with many events.

    Until its last step such a run can be read, as one whose oldest events are gone. Answers whether there may be more.
    """
    run_ids = conn.execute(_kept_long_enough, {"b_before": before_ms}).scalars().all()
    rows = 0
    for done, run_id in enumerate(run_ids):
        rows += conn.execute(_count, {"b_run": run_id}).scalar_one()
        if rows > STEP_ROWS and done:
            return True
        if rows > STEP_ROWS:
            _shorten(conn, run_id)
            return True
        for statement in (*_rows_of_run, _run):
            conn.execute(statement, {"b_run": run_id})
        hit(Point.REMOVING)
    return len(run_ids) == STEP_RUNS


def _shorten(conn: Connection, run_id: str) -> None:
    """Delete the oldest STEP_ROWS events of a run that has more."""
    first = conn.execute(_nth, {"b_run": run_id, "b_rows": STEP_ROWS}).one()
    conn.execute(_drop_before, {"b_run": run_id, "b_seq": first.seq})
    begins = first.first_seq if first.not_kept_from is None else first.not_kept_from
    conn.execute(_begin_at, {"b_run": run_id, "b_first": begins})
