"""The oldest events of an ended run go, some in one step; what is left begins where the run says."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, func, select, update

from app.store import tables as t

_count = select(func.count()).select_from(t.run_event).where(t.run_event.c.run_id == bindparam("b_run"))
_nth = (
    select(t.run_event.c.seq, t.run_event.c.first_seq, t.run_event.c.not_kept_from)
    .where(t.run_event.c.run_id == bindparam("b_run"))
    .order_by(t.run_event.c.seq)
    .offset(bindparam("b_n"))
    .limit(1)
)
_drop_before = delete(t.run_event).where(
    t.run_event.c.run_id == bindparam("b_run"), t.run_event.c.seq < bindparam("b_seq")
)
_begin_at = update(t.run).where(t.run.c.id == bindparam("b_run")).values(seq_first=bindparam("b_first"))


def count_events(conn: Connection, run_id: str) -> int:
    """How many rows of events a run has."""
    return int(conn.execute(_count, {"b_run": run_id}).scalar_one())


def drop_oldest(conn: Connection, run_id: str, rows: int) -> None:
    """Delete so many rows, the oldest, of a run that has more."""
    first = conn.execute(_nth, {"b_run": run_id, "b_n": rows}).one()
    conn.execute(_drop_before, {"b_run": run_id, "b_seq": first.seq})
    # The first number that its row stands for, those it names as not kept among them.
    begins = first.first_seq if first.not_kept_from is None else first.not_kept_from
    conn.execute(_begin_at, {"b_run": run_id, "b_first": begins})
