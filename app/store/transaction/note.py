"""T13: an entry that comes from no run, in one step, only while no run of its session is under way."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
from sqlalchemy import Connection, bindparam, insert, select, update

from app.store import tables as t
from app.store.statuses import is_executing


@dataclass(frozen=True, slots=True)
class Note:
    """What to append: text for people and models, with the ids of its entry and message."""

    entry_id: str
    message_id: str
    text: str
    created_at: int


@dataclass(frozen=True, slots=True)
class NotePlace:
    """A session as a writer that is no run finds it. `run_id` is the run under way, if there is one."""

    session_id: str
    transcript_id: str
    next_entry: int
    run_id: str | None


class PlaceTaken(Exception):
    """The session has moved on since its place was read; nothing was stored."""


_session = select(t.session).where(t.session.c.key == bindparam("b_key")).with_for_update()
_under_way = (
    select(t.run.c.id).where(t.run.c.session_id == bindparam("b_session"), is_executing(t.run.c.status)).limit(1)
)
_number = (
    update(t.session)
    .where(
        t.session.c.id == bindparam("b_session"),
        t.session.c.transcript_id == bindparam("b_transcript"),
        t.session.c.next_entry == bindparam("b_next_entry"),
    )
    .values(next_entry=t.session.c.next_entry + 1, updated_at=bindparam("b_now"))
)
_append = insert(t.transcript)


def note_place(conn: Connection, session_key: str) -> NotePlace | None:
    """Where the next entry of a session would stand; None when there is no such session."""
    session = conn.execute(_session, {"b_key": session_key}).one_or_none()
    if session is None:
        return None
    run_id = conn.execute(_under_way, {"b_session": session.id}).scalar_one_or_none()
    return NotePlace(session.id, session.transcript_id, session.next_entry, run_id)


def append_note(conn: Connection, session_key: str, read: NotePlace, note: Note) -> int:
    """Append at the place that was read, and return its number. Raises PlaceTaken when that is no longer the place."""
    place = note_place(conn, session_key)
    if place is None or place.run_id is not None:
        raise PlaceTaken
    where = {
        "b_session": read.session_id,
        "b_transcript": read.transcript_id,
        "b_next_entry": read.next_entry,
        "b_now": note.created_at,
    }
    if conn.execute(_number, where).rowcount == 0:
        raise PlaceTaken
    row = {
        "transcript_id": read.transcript_id,
        "entry_no": read.next_entry,
        "entry_id": note.entry_id,
        "run_id": None,
        "attempt": None,
        "kind": "note",
        "role": "assistant",
        "message_id": note.message_id,
        "payload": orjson.dumps({"parts": [{"type": "text", "text": note.text}]}).decode(),
        "aborted": False,
        "created_at": note.created_at,
    }
    conn.execute(_append, row)
    return read.next_entry
