"""T14: the deltas of an ended run become few rows, and no text of its transcript is kept twice.

One stretch a step, so that nothing else waits long behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, delete, select, update

from app.domain.event import Event
from app.domain.folding import STREAMS, Delta, Folded, delta_of, emptied, joined, stretch
from app.faults import Point, hit
from app.store import tables as t
from app.store.transaction.lend import Lender
from app.store.transaction.trim import count_events, drop_oldest

RUNS = 16
LOOKS = 48
"""Of one step: runs, and pages of rows."""

PAGE_ROWS = 500
"""Rows looked at in one step."""

_unfolded = (
    select(t.run.c.id)
    .where(t.run.c.folded_at.is_(None), t.run.c.ended_at.is_not(None), t.run.c.ended_at <= bindparam("b_before"))
    .order_by(t.run.c.ended_at)
    .limit(bindparam("b_limit"))
)
_page = (
    select(t.run_event)
    .where(t.run_event.c.run_id == bindparam("b_run"), t.run_event.c.seq > bindparam("b_after"))
    .order_by(t.run_event.c.seq)
    .limit(PAGE_ROWS)
)
_resets = select(t.run_event.c.stream, t.run_event.c.payload).where(
    t.run_event.c.run_id == bindparam("b_run"),
    t.run_event.c.stream.in_(STREAMS),
    t.run_event.c.payload.like('%"phase":"reset"%'),
)
_last_deltas = (
    select(t.run_event)
    .where(
        t.run_event.c.run_id == bindparam("b_run"),
        t.run_event.c.stream == bindparam("b_stream"),
        t.run_event.c.payload.like(bindparam("b_start")),
    )
    .order_by(t.run_event.c.seq.desc())
    .limit(PAGE_ROWS)
)
_drop = delete(t.run_event).where(
    t.run_event.c.run_id == bindparam("b_run"),
    t.run_event.c.seq >= bindparam("b_first"),
    t.run_event.c.seq < bindparam("b_seq"),
)
_join = (
    update(t.run_event)
    .where(t.run_event.c.run_id == bindparam("b_run"), t.run_event.c.seq == bindparam("b_seq"))
    .values(
        first_seq=bindparam("b_first"),
        payload=bindparam("b_payload"),
        cuts=bindparam("b_cuts"),
        borrows=bindparam("b_borrows"),
    )
)
_done = (
    update(t.run)
    .where(t.run.c.id == bindparam("b_run"), t.run.c.ended_at.is_not(None))
    .values(folded_at=bindparam("b_now"))
)


@dataclass(frozen=True, slots=True)
class FoldPlace:
    """How far a run is folded: every row up to `after` is as it will stay. `done`: all of it is."""

    after: int
    done: bool = False


BEGIN = FoldPlace(-1)
"""Where folding begins: with what was taken back."""


def unfolded(conn: Connection, before_ms: int, limit: int) -> list[str]:
    """Ended runs that are not folded, the longest ended first."""
    return list(conn.execute(_unfolded, {"b_before": before_ms, "b_limit": limit}).scalars())


def fold(  # noqa: PLR0913
    conn: Connection,
    run_id: str,
    place: FoldPlace,
    now_ms: int,
    bytes_max: int,
    events_max: int = 0,
    lender: Lender | None = None,
) -> FoldPlace:
    """Fold the next stretch of a run that has ended. `place` is BEGIN, then what the step before returned.

    Repeated from any place, it changes nothing more. `bytes_max`: of a joined text in JSON. `events_max`: rows that are
    kept in the end, the newest; 0: all. `lender`: of this run, for several calls in one step of the store.
    """
    lender = lender or Lender(conn, run_id)
    rows = conn.execute(_page, {"b_run": run_id, "b_after": place.after}).mappings().all()
    if place == BEGIN:
        is_all = len(rows) < PAGE_ROWS
        if not is_all or any('"phase":"reset"' in row["payload"] for row in rows):
            return BEGIN if _empty(conn, run_id) else FoldPlace(0)
        place = FoldPlace(0)
    deltas = [_delta(row) for row in rows]
    found = stretch(deltas, bytes_max)
    if found:
        one = joined(found)
        if (lent_to := lender.lend_events(row for row in rows if row["seq"] < one.first_seq)) is not None:
            return FoldPlace(lent_to)
        # It may go on behind this page: then the joined row is the first of the next stretch.
        goes_on = len(rows) == PAGE_ROWS and one.seq == rows[-1]["seq"]
        _put(conn, run_id, found, one, None if goes_on else lender.lent(one.payload.decode()))
        hit(Point.FOLDING)
        return FoldPlace(one.first_seq - 1 if goes_on else one.seq)
    # The last row of a full page may be the first of a stretch that goes on behind it.
    final = rows[:-1] if len(rows) == PAGE_ROWS and deltas[-1] is not None else rows
    if (lent_to := lender.lend_events(final)) is not None:
        return FoldPlace(lent_to)
    if len(rows) == PAGE_ROWS:
        return FoldPlace(final[-1]["seq"])
    if events_max and _trim(conn, run_id, events_max):
        return place
    if not lender.lend_texts():
        return place
    conn.execute(_done, {"b_run": run_id, "b_now": now_ms})
    return FoldPlace(place.after, done=True)


@dataclass(frozen=True, slots=True)
class FoldStep:
    """What a step has left: `more` to do, and where it stopped within a run, if it did."""

    more: bool
    run_id: str = ""
    place: FoldPlace = BEGIN


def fold_some(  # noqa: PLR0913
    conn: Connection, before_ms: int, now_ms: int, bytes_max: int, events_max: int, last: FoldStep
) -> FoldStep:
    """Fold what ended at or before an instant, some runs or a part of a long one, going on where `last` stopped."""
    looks = 0
    for run_id in unfolded(conn, before_ms, RUNS):
        place, lender = last.place if run_id == last.run_id else BEGIN, Lender(conn, run_id)
        while not place.done:
            if looks == LOOKS:
                return FoldStep(True, run_id, place)
            place = fold(conn, run_id, place, now_ms, bytes_max, events_max, lender)
            looks += 1
    return FoldStep(looks > 0)


def _trim(conn: Connection, run_id: str, events_max: int) -> bool:
    """Delete the oldest rows beyond the bound, at most a page of them. False when there are none."""
    surplus = min(count_events(conn, run_id) - events_max, PAGE_ROWS)
    if surplus <= 0:
        return False
    drop_oldest(conn, run_id, surplus)
    return True


def _empty(conn: Connection, run_id: str) -> bool:
    """Empty the last deltas of a message that was taken back. False when there are none left.

    From the end, so that a reader never meets a delta of it behind the first reset.
    """
    for row in conn.execute(_resets, {"b_run": run_id}).all():
        message_id = orjson.loads(row.payload)["messageId"]
        which = {"b_run": run_id, "b_stream": row.stream, "b_start": f'{{"messageId":"{message_id}","delta":%'}
        last = conn.execute(_last_deltas, which).mappings().all()
        deltas = [one for one in map(_delta, reversed(last)) if one is not None]
        for folded in emptied(deltas):
            covered = [one for one in deltas if folded.first_seq <= one.seq <= folded.seq]
            _put(conn, run_id, covered, folded)
        if deltas:
            hit(Point.FOLDING)
            return True
    return False


def _put(conn: Connection, run_id: str, covered: Sequence[Delta], one: Folded, lent: str | None = None) -> None:
    """One row in place of several, under the number of the last. `lent`: its payload when that borrows."""
    conn.execute(_drop, {"b_run": run_id, "b_first": covered[0].seq, "b_seq": one.seq})
    conn.execute(
        _join,
        {
            "b_run": run_id,
            "b_seq": one.seq,
            "b_first": one.first_seq,
            "b_payload": one.payload.decode() if lent is None else lent,
            "b_borrows": lent is not None,
            "b_cuts": one.cuts,
        },
    )


def _delta(row: Any) -> Delta | None:
    if row["borrows"]:
        return None
    event = Event(
        row["run_id"],
        row["seq"],
        row["stream"],
        row["ts"],
        row["payload"].encode(),
        first_seq=row["first_seq"],
        not_kept_from=row["not_kept_from"],
    )
    return delta_of(event, row["cuts"])
