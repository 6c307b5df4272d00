"""T4 to T6 (and the text half of T8): what an executing attempt writes. Each write is fenced by its run and attempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, func, insert, select, update

from app.domain.event import Event
from app.domain.message import Message, ToolResultPart
from app.store import tables as t
from app.store.contract import AbortRequested, ClaimLost, Fenced
from app.store.transaction.ledger import put_events

BLOCK = 1000
"""Event numbers reserved ahead: a number may be told only while it is not above the reserve as last committed."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Which attempt writes, where its transcript is, and how long it has executed by now."""

    run_id: str
    attempt: int
    session_id: str
    transcript_id: str
    take_no: int
    active_ms: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A message to append. `aborted`: it was cut off by an abort, a limit or a failure."""

    entry_id: str
    message: Message
    created_at: int
    aborted: bool = False


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
_fence_kept = _fence.values(open_message=None, stalled=0)
_still_running = select(t.run.c.seq_high, t.run.c.abort_at).where(
    t.run.c.id == bindparam("b_run"),
    t.run.c.attempt == bindparam("b_attempt"),
    t.run.c.status == "running",
)
_append = (
    update(t.session)
    .where(
        t.session.c.id == bindparam("b_session"),
        t.session.c.writer_run == bindparam("b_run"),
        t.session.c.writer_attempt == bindparam("b_attempt"),
        t.session.c.transcript_id == bindparam("b_transcript"),
    )
    .values(next_entry=t.session.c.next_entry + bindparam("b_count"))
)
_next_entry = select(t.session.c.next_entry).where(t.session.c.id == bindparam("b_session"))
_insert_entries = insert(t.transcript)
_insert_calls = insert(t.tool_call)
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
        raise _why_not_open(conn, claim)
    put_events(conn, events, claim.session_id, take_no=claim.take_no, q=None)
    return int(numbers["b_high"])


def _why_not_open(conn: Connection, claim: Claim) -> Exception:
    row = conn.execute(_still_running, {"b_run": claim.run_id, "b_attempt": claim.attempt}).one_or_none()
    return Fenced() if row is None else AbortRequested()


def keep_deltas(conn: Connection, claim: Claim, events: tuple[Event, ...], *, last: int, high: int) -> int:
    """T5: what was told. Returns the new reserve. Raises Fenced."""
    numbers = _numbers(claim, events, last, high)
    if conn.execute(_fence, numbers).rowcount == 0:
        raise Fenced
    put_events(conn, events, claim.session_id, take_no=claim.take_no, q=None)
    return int(numbers["b_high"])


def keep_messages(  # noqa: PLR0913
    conn: Connection, claim: Claim, entries: list[Entry], events: tuple[Event, ...], *, last: int, high: int
) -> int:
    """T6 and T8 in one: an assistant entry with, when it has calls, their results behind it, nothing between.

    Returns the new reserve. Raises Fenced, ClaimLost.
    """
    append_entries(conn, claim, entries)
    numbers = _numbers(claim, events, last, high)
    if conn.execute(_fence_kept, numbers).rowcount == 0:
        raise Fenced
    put_events(conn, events, claim.session_id, take_no=claim.take_no, q=None)
    return int(numbers["b_high"])


def append_entries(conn: Connection, claim: Claim, entries: list[Entry]) -> None:
    """G3, then the rows. Raises ClaimLost when the session was taken over or reset."""
    where = {
        "b_session": claim.session_id,
        "b_run": claim.run_id,
        "b_attempt": claim.attempt,
        "b_transcript": claim.transcript_id,
        "b_count": len(entries),
    }
    if conn.execute(_append, where).rowcount == 0:
        raise ClaimLost
    first_no = conn.execute(_next_entry, {"b_session": claim.session_id}).scalar_one() - len(entries)
    conn.execute(
        _insert_entries,
        [
            {
                "transcript_id": claim.transcript_id,
                "entry_no": first_no + place,
                "entry_id": entry.entry_id,
                "run_id": claim.run_id,
                "attempt": claim.attempt,
                "kind": "message",
                "role": entry.message.role,
                "message_id": entry.message.message_id,
                "payload": message_text(entry.message),
                "aborted": entry.aborted,
                "created_at": entry.created_at,
            }
            for place, entry in enumerate(entries)
        ],
    )
    _put_calls(conn, claim, first_no, entries)


def _put_calls(conn: Connection, claim: Claim, first_no: int, entries: list[Entry]) -> None:
    """Rows of the calls, each with the result that stands behind them."""
    results = {
        part.tool_call_id: part.content
        for entry in entries
        for part in entry.message.parts
        if isinstance(part, ToolResultPart)
    }
    rows = [
        {
            "id": f"{entry.entry_id}:{ordinal}",
            "run_id": claim.run_id,
            "entry_no": first_no + place,
            "ordinal": ordinal,
            "attempt": claim.attempt,
            "state": "skipped",
            "kind": "local",
            "name": call.name,
            "call_id": call.tool_call_id,
            "args": call.args,
            "result": results.get(call.tool_call_id),
        }
        for place, entry in enumerate(entries)
        for ordinal, call in enumerate(entry.message.tool_calls)
    ]
    if rows:
        conn.execute(_insert_calls, rows)


def message_text(message: Message) -> str:
    """A message as its transcript row keeps it: JSON, byte-stable."""
    shaped: dict[str, Any] = {"parts": [part.to_json() for part in message.parts]}
    if message.stop_reason is not None:
        shaped["stopReason"] = message.stop_reason
    if message.model is not None:
        shaped["model"] = message.model
    if message.usage is not None:
        shaped["usage"] = message.usage.to_json()
    if message.source:
        shaped["source"] = message.source
    return orjson.dumps(shaped).decode()
