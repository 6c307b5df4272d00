"""Rows of the transcript: append only, numbered under the session's lock, by whoever may write it at that instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, insert, update

from app.domain.message import Message
from app.store import tables as t
from app.store.contract import ClaimLost


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


_claimed = (
    update(t.session)
    .where(
        t.session.c.id == bindparam("b_session"),
        t.session.c.writer_run == bindparam("b_run"),
        t.session.c.writer_attempt == bindparam("b_attempt"),
        t.session.c.transcript_id == bindparam("b_transcript"),
    )
    .values(next_entry=t.session.c.next_entry + bindparam("b_count"))
    .returning(t.session.c.next_entry)
)
_locked = (
    update(t.session)
    .where(t.session.c.id == bindparam("b_session"), t.session.c.transcript_id == bindparam("b_transcript"))
    .values(next_entry=t.session.c.next_entry + bindparam("b_count"))
    .returning(t.session.c.next_entry)
)
_insert_entries = insert(t.transcript)


def check_claim(conn: Connection, claim: Claim, *, entries: int = 0) -> int:
    """G3, which also gives out the numbers of so many entries. Returns the first of them.

    Raises ClaimLost when the claim was taken over or the transcript was reset.
    """
    where = {
        "b_session": claim.session_id,
        "b_run": claim.run_id,
        "b_attempt": claim.attempt,
        "b_transcript": claim.transcript_id,
        "b_count": entries,
    }
    following = conn.execute(_claimed, where).scalar_one_or_none()
    if following is None:
        raise ClaimLost
    return int(following) - entries


def append_entries(conn: Connection, claim: Claim, entries: list[Entry]) -> int:
    """G3, then the rows. Returns the number of the first one. Raises ClaimLost."""
    first_no = check_claim(conn, claim, entries=len(entries))
    _put(conn, claim.transcript_id, first_no, claim.run_id, claim.attempt, entries)
    return first_no


def append_by_proxy(conn: Connection, session: Any, run: Any, entries: list[Entry]) -> None:
    """For a run that nobody executes, by the holder of its session's lock. A transcript that was reset stays closed."""
    where = {"b_session": session["id"], "b_transcript": run["transcript_id"], "b_count": len(entries)}
    following = conn.execute(_locked, where).scalar_one_or_none()
    if following is not None:
        _put(conn, run["transcript_id"], int(following) - len(entries), run["id"], run["attempt"], entries)


def _put(  # noqa: PLR0913
    conn: Connection, transcript_id: str, first_no: int, run_id: str, attempt: int, entries: list[Entry]
) -> None:
    conn.execute(
        _insert_entries,
        [
            {
                "transcript_id": transcript_id,
                "entry_no": first_no + place,
                "entry_id": entry.entry_id,
                "run_id": run_id,
                "attempt": attempt,
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
