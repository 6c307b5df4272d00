"""T4 to T6: what an executing attempt writes around its model requests. Each write is fenced by run and attempt."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, func, select, update

from app.domain.event import Event
from app.store import tables as t
from app.store.contract import AbortRequested, Fenced
from app.store.transaction.entries import Claim, Entry, append_entries
from app.store.transaction.ledger import put_events

BLOCK = 1000
"""Event numbers reserved ahead: a number may be told only while it is not above the reserve as last committed."""


_fence = (
    update(t.run)
    .where(
        t.run.c.id == bindparam("b_run"),
        t.run.c.attempt == bindparam("b_attempt"),
        t.run.c.status == "running",
    )
    .values(
        seq_last=bindparam("b_last"),
        seq_high=bindparam("b_high"),
        active_ms=bindparam("b_active_ms"),
    )
)
_fence_open = _fence.where(t.run.c.abort_at.is_(None)).values(open_message=bindparam("b_message"))
_fence_unless_aborted = _fence.where(t.run.c.abort_at.is_(None))
_fence_kept = _fence.values(open_message=None, stalled=0)
_fence_progressed = _fence.values(stalled=0)
_still_running = select(t.run.c.seq_high, t.run.c.abort_at).where(
    t.run.c.id == bindparam("b_run"),
    t.run.c.attempt == bindparam("b_attempt"),
    t.run.c.status == "running",
)
_has_entry = select(func.count()).select_from(t.transcript).where(t.transcript.c.run_id == bindparam("b_run"))


def _numbers(claim: Claim, events: tuple[Event, ...], last: int, high: int) -> dict[str, Any]:
    seq_last = events[-1].seq if events else last
    return {
        "b_run": claim.run_id,
        "b_attempt": claim.attempt,
        "b_last": seq_last,
        "b_high": max(high, seq_last + BLOCK),
        "b_active_ms": claim.active_ms,
    }


def open_model(  # noqa: PLR0913
    conn: Connection,
    claim: Claim,
    message_id: str,
    events: tuple[Event, ...],
    first: Entry | None,
    *,
    last: int,
    high: int,
) -> int:
    """T4: before a model request. `first` is the run's input, appended once. Returns the new reserve (`seq_high`).

    Raises AbortRequested when an abort is committed, Fenced, ClaimLost. `last` and `high` are the numbers as last
    committed.
    """
    if first is not None and conn.execute(_has_entry, {"b_run": claim.run_id}).scalar_one() == 0:
        append_entries(conn, claim, [first])
    numbers = _numbers(claim, events, last, high)
    if conn.execute(_fence_open, {**numbers, "b_message": message_id}).rowcount == 0:
        raise _why_not_on(conn, claim)
    put_events(conn, events, claim.session_id, take_no=claim.take_no, q=None)
    return int(numbers["b_high"])


def keep_deltas(conn: Connection, claim: Claim, events: tuple[Event, ...], *, last: int, high: int) -> int:
    """T5: what was told. Returns the new reserve. Raises Fenced."""
    return _write(conn, _fence, claim, events, last, high)


def keep_message(  # noqa: PLR0913
    conn: Connection, claim: Claim, entry: Entry, events: tuple[Event, ...], *, last: int, high: int
) -> tuple[int, int]:
    """T6: the assistant's entry. Returns its number and the new reserve. Raises Fenced, ClaimLost."""
    entry_no = append_entries(conn, claim, [entry])
    return entry_no, _write(conn, _fence_kept, claim, events, last, high)


def keep_progress(conn: Connection, claim: Claim, events: tuple[Event, ...], *, last: int, high: int) -> int:
    """The fence and the events of a step that settled something. Returns the new reserve. Raises Fenced."""
    return _write(conn, _fence_progressed, claim, events, last, high)


def keep_unless_aborted(conn: Connection, claim: Claim, events: tuple[Event, ...], *, last: int, high: int) -> int:
    """The fence and the events of a step that begins something. Raises AbortRequested, Fenced."""
    numbers = _numbers(claim, events, last, high)
    if conn.execute(_fence_unless_aborted, numbers).rowcount == 0:
        raise _why_not_on(conn, claim)
    put_events(conn, events, claim.session_id, take_no=claim.take_no, q=None)
    return int(numbers["b_high"])


def _write(  # noqa: PLR0913
    conn: Connection, fence: Any, claim: Claim, events: tuple[Event, ...], last: int, high: int
) -> int:
    numbers = _numbers(claim, events, last, high)
    if conn.execute(fence, numbers).rowcount == 0:
        raise Fenced
    put_events(conn, events, claim.session_id, take_no=claim.take_no, q=None)
    return int(numbers["b_high"])


def _why_not_on(conn: Connection, claim: Claim) -> Exception:
    row = conn.execute(_still_running, {"b_run": claim.run_id, "b_attempt": claim.attempt}).one_or_none()
    return Fenced() if row is None else AbortRequested()
