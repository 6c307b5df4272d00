"""Reads of transcripts: the whole of one for the next model request, a page of one for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, Row, bindparam, select

from app.domain.message import Message, Usage, part_from_json
from app.store import tables as t


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """A stored entry with its place."""

    entry_id: str
    entry_no: int
    kind: str
    run_id: str | None
    created_at: int
    aborted: bool
    message: Message


_all = select(t.transcript).where(t.transcript.c.transcript_id == bindparam("b_id")).order_by(t.transcript.c.entry_no)
_newest = (
    select(t.transcript)
    .where(t.transcript.c.transcript_id == bindparam("b_id"), t.transcript.c.entry_no < bindparam("b_before"))
    .order_by(t.transcript.c.entry_no.desc())
    .limit(bindparam("b_limit"))
)


def history(conn: Connection, transcript_id: str) -> list[Message]:
    """Every message in order, as the model gets them."""
    return [_entry(row).message for row in conn.execute(_all, {"b_id": transcript_id})]


def page(conn: Connection, transcript_id: str, before: int, limit: int) -> list[TranscriptEntry]:
    """Up to `limit` entries below number `before`, newest first."""
    rows = conn.execute(_newest, {"b_id": transcript_id, "b_before": before, "b_limit": limit})
    return [_entry(row) for row in rows]


def _entry(row: Row[Any]) -> TranscriptEntry:
    shaped = orjson.loads(row.payload)
    usage = shaped.get("usage")
    message = Message(
        role=row.role,
        message_id=row.message_id,
        parts=tuple(part_from_json(part) for part in shaped["parts"]),
        stop_reason=shaped.get("stopReason"),
        model=shaped.get("model"),
        usage=None if usage is None else Usage.from_json(usage),
        source=shaped.get("source", ""),
    )
    return TranscriptEntry(row.entry_id, row.entry_no, row.kind, row.run_id, row.created_at, bool(row.aborted), message)
