"""Upkeep of what is bounded: the ledger by rows and age, in small steps."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, func, select

from app.store import tables as t

STEP_ROWS = 500
"""Rows deleted in one step, so that accepts never wait long behind upkeep."""

_oldest_old = select(t.audit.c.seq).where(t.audit.c.ts < bindparam("b_before")).order_by(t.audit.c.seq).limit(STEP_ROWS)
_oldest_over = (
    select(t.audit.c.seq).where(t.audit.c.seq <= bindparam("b_upto")).order_by(t.audit.c.seq).limit(STEP_ROWS)
)
_newest = select(func.max(t.audit.c.seq))


def bound_audit(conn: Connection, before_ms: int, rows_max: int) -> bool:
    """Delete up to STEP_ROWS of what is too old or too much, oldest first. Answers whether there may be more.

    By number, not by count, which would read them all: a number that was never given counts as a row.
    """
    old = conn.execute(_oldest_old, {"b_before": before_ms}).scalars().all()
    if not old:
        newest = conn.execute(_newest).scalar_one()
        old = conn.execute(_oldest_over, {"b_upto": (newest or 0) - rows_max}).scalars().all()
    if old:
        conn.execute(delete(t.audit).where(t.audit.c.seq.in_(old)))
    return bool(old)
