"""Upkeep of what is bounded: the ledger by rows and age, in small steps."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, select

from app.store import tables as t

STEP_ROWS = 500
"""Rows deleted in one step, so that accepts never wait long behind upkeep."""

_oldest_old = select(t.audit.c.seq).where(t.audit.c.ts < bindparam("b_before")).order_by(t.audit.c.seq).limit(STEP_ROWS)
_oldest_over = (
    select(t.audit.c.seq).where(t.audit.c.seq <= bindparam("b_upto")).order_by(t.audit.c.seq).limit(STEP_ROWS)
)
_nth_newest = select(t.audit.c.seq).order_by(t.audit.c.seq.desc()).offset(bindparam("b_rows")).limit(1)


def bound_audit(conn: Connection, before_ms: int, rows_max: int) -> int:
    """Delete up to STEP_ROWS of what is too old or too much, oldest first; returns how many, 0 when within bounds."""
    old = conn.execute(_oldest_old, {"b_before": before_ms}).scalars().all()
    if not old:
        over = conn.execute(_nth_newest, {"b_rows": rows_max}).scalar_one_or_none()
        if over is None:
            return 0
        old = conn.execute(_oldest_over, {"b_upto": over}).scalars().all()
    conn.execute(delete(t.audit).where(t.audit.c.seq.in_(old)))
    return len(old)
