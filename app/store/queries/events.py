"""Reads of the event log: a page after a cursor, where a run stands, and the runs that moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, select

from app.domain.event import Event
from app.domain.folding import rest_of
from app.domain.run import RunInput, RunStatus
from app.store import tables as t
from app.store.queries.lending import Lending
from app.store.queries.runs import absent

PAGE_EVENTS = 500
PAGE_BYTES = 1 << 20
"""A page ends after this much payload even when more rows would fit, so that a slow reader holds little."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands for its readers: status, the numbers kept and given out, and its session."""

    run_id: str
    session_key: str
    session_id: str
    status: RunStatus
    seq_first: int
    seq_last: int
    seq_high: int


def just_accepted(run_id: str, session_key: str, session_id: str) -> Standing:
    """Where a run stands at the COMMIT that accepted it: nothing but its first event is known."""
    return Standing(run_id, session_key, session_id, RunStatus.QUEUED, 1, 1, 1)


_standing = (
    select(
        t.run.c.id,
        t.session.c.key,
        t.run.c.transcript_id,
        t.run.c.status,
        t.run.c.seq_first,
        t.run.c.seq_last,
        t.run.c.seq_high,
    )
    .join(t.session, t.session.c.id == t.run.c.session_id)
    .where(t.run.c.id == bindparam("b_id"), t.run.c.principal == bindparam("b_principal"))
)
_page = (
    select(
        t.run_event.c.seq,
        t.run_event.c.first_seq,
        t.run_event.c.not_kept_from,
        t.run_event.c.stream,
        t.run_event.c.terminal,
        t.run_event.c.ts,
        t.run_event.c.payload,
        t.run_event.c.cuts,
        t.run_event.c.borrows,
    )
    .where(t.run_event.c.run_id == bindparam("b_run"), t.run_event.c.seq > bindparam("b_after"))
    .order_by(t.run_event.c.seq)
    .limit(PAGE_EVENTS)
)
_moved = select(t.run.c.id, t.run.c.seq_last, t.run.c.status).where(t.run.c.id.in_(bindparam("b_ids", expanding=True)))


def standing(conn: Connection, run_id: str, principal: str) -> Standing:
    """Of a run of the caller's. Raises RunNotFound, RunDeleted."""
    row = conn.execute(_standing, {"b_id": run_id, "b_principal": principal}).one_or_none()
    if row is None:
        raise absent(conn, run_id, principal)
    return Standing(
        row.id,
        row.key,
        row.transcript_id,
        RunStatus(row.status),
        row.seq_first,
        row.seq_last,
        row.seq_high,
    )


def page_after(conn: Connection, run_id: str, cursor: int) -> list[Event]:
    """Events with a number above `cursor`, in order: at most PAGE_EVENTS, at most about PAGE_BYTES.

    Of a folded event that the cursor lies in, the rest.
    """
    events: list[Event] = []
    size = 0
    lending = Lending(conn, run_id)
    for row in conn.execute(_page, {"b_run": run_id, "b_after": cursor}).all():
        payload = lending.restored(row.payload) if row.borrows else row.payload
        event = Event(
            run_id,
            row.seq,
            row.stream,
            row.ts,
            payload.encode(),
            first_seq=row.first_seq,
            not_kept_from=row.not_kept_from,
            terminal=bool(row.terminal),
        )
        if event.first_seq <= cursor:
            event = rest_of(event, row.cuts, cursor)
        events.append(event)
        size += len(event.payload)
        if size > PAGE_BYTES:
            break
    return events


_there = select(t.run.c.id).where(t.run.c.id == bindparam("b_id"))


def next_page(conn: Connection, run_id: str, cursor: int) -> list[Event] | None:
    """As `page_after`; None when the run is not kept any more."""
    page = page_after(conn, run_id, cursor)
    return page if page or conn.execute(_there, {"b_id": run_id}).first() is not None else None


def is_whole(page: list[Event]) -> bool:
    """Whether a page of `page_after` held all there was: neither of its bounds cut it."""
    return len(page) < PAGE_EVENTS and sum(len(event.payload) for event in page) <= PAGE_BYTES


def moved(conn: Connection, run_ids: Sequence[str]) -> list[tuple[str, int, bool]]:
    """(run id, last number kept, ended) of each run; one query for all that a process watches."""
    rows = conn.execute(_moved, {"b_ids": list(run_ids)})
    return [(row.id, row.seq_last, RunStatus(row.status).terminal) for row in rows]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run's state and the cursor that goes with it, from one instant of the database. `oldest`: first number kept."""

    cursor: int
    ended: bool
    oldest: int
    data: dict[str, Any]


_input = select(t.run_text.c.input, t.run_text.c.borrows).where(t.run_text.c.run_id == bindparam("b_run"))
_said = (
    select(t.transcript.c.message_id, t.transcript.c.payload)
    .where(t.transcript.c.run_id == bindparam("b_run"), t.transcript.c.role == "assistant")
    .order_by(t.transcript.c.entry_no)
)


def snapshot(conn: Connection, run_id: str, principal: str, describe: Any) -> Snapshot:
    """All that was told of a run so far, joined by message. `describe(conn, run_id)` gives its record's JSON.

    Raises RunNotFound, RunDeleted.
    """
    where = standing(conn, run_id, principal)
    if where.seq_first > 1:
        seen, cursor = _from_transcript(conn, run_id), where.seq_last
    else:
        seen, cursor = _from_events(conn, run_id)
    data = {"sessionId": where.session_id, "runs": [{**describe(conn, run_id), **seen}]}
    return Snapshot(cursor, where.status.terminal, where.seq_first, data)


def _from_events(conn: Connection, run_id: str) -> tuple[dict[str, Any], int]:
    messages: dict[str, dict[str, Any]] = {}
    calls: dict[str, dict[str, Any]] = {}
    asked: dict[str, Any] | None = None
    cursor = 0
    while page := page_after(conn, run_id, cursor):
        for event in page:
            cursor = event.seq
            if event.stream == "tool":
                _note_call(event, calls)
            else:
                asked = _note(event, messages) or asked
    return {"input": asked, "messages": list(messages.values()), "openToolCalls": list(calls.values())}, cursor


def _from_transcript(conn: Connection, run_id: str) -> dict[str, Any]:
    """For an ended run whose first events are not kept: what it said is, whole."""
    row = conn.execute(_input, {"b_run": run_id}).one()
    asked = RunInput.from_json(orjson.loads(Lending(conn, run_id).restored(row.input) if row.borrows else row.input))
    messages: list[dict[str, Any]] = []
    for row in conn.execute(_said, {"b_run": run_id}):
        parts = orjson.loads(row.payload)["parts"]
        for stream, kind in (("thinking", "thinking"), ("assistant", "text")):
            text = "".join(part["text"] for part in parts if part["type"] == kind)
            if text and (stream == "assistant" or asked.reasoning == "stream"):
                messages.append({"messageId": row.message_id, "stream": stream, "text": text, "ended": True})
    said = {"messageId": asked.message_id, "parts": asked.parts, "source": asked.source}
    return {"input": said, "messages": messages, "openToolCalls": []}


def _note(event: Event, messages: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Apply one event to the messages so far; returns the input when it is the event that tells it."""
    data = orjson.loads(event.payload)
    if event.stream == "lifecycle":
        return data.get("input") if data.get("phase") == "queued" else None
    if event.stream not in ("assistant", "thinking"):
        return None
    message_id = data["messageId"]
    message = messages.setdefault(
        f"{event.stream}:{message_id}", {"messageId": message_id, "stream": event.stream, "text": "", "ended": False}
    )
    if data.get("phase") == "reset":
        del messages[f"{event.stream}:{message_id}"]
    elif data.get("phase") == "end":
        message["ended"] = True
    elif "delta" in data:
        message["text"] += data["delta"]
    return None


def _note_call(event: Event, calls: dict[str, dict[str, Any]]) -> None:
    """Apply one event to the calls that have no result yet."""
    data = orjson.loads(event.payload)
    phase, call_id = data["phase"], data["toolCallId"]
    if phase == "end":
        calls.pop(call_id, None)
    elif phase in ("requested", "start"):
        shown = {name: data[name] for name in ("toolCallId", "messageId", "name", "args")}
        calls[call_id] = {**shown, "state": "requested" if phase == "requested" else "started"}
