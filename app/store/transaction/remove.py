"""Runs that have been kept long enough go, with their events and keys, in small steps; transcript and ledger stay."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, select

from app.faults import Point, hit
from app.store import tables as t
from app.store.transaction.trim import count_events, drop_oldest

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
        rows += count_events(conn, run_id)
        if rows > STEP_ROWS and done:
            return True
        if rows > STEP_ROWS:
            drop_oldest(conn, run_id, STEP_ROWS)
            return True
        for statement in (*_rows_of_run, _run):
            conn.execute(statement, {"b_run": run_id})
        hit(Point.REMOVING)
    return len(run_ids) == STEP_RUNS
