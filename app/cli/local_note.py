"""Appending a note from beside the service: under the session's write lock, while no run is under way."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial

from app.clock import SystemClock, UuidIds
from app.errors import SessionBusy, SessionNotFound, StartError, StoreBusy
from app.settings import EMBEDDED, Settings
from app.store.files import database_path
from app.store.session_lock import POLL_S_MAX, POLL_S_MIN, SessionLocks
from app.store.sqlite_beside import SqliteBeside
from app.store.transaction.note import Note, NotePlace, PlaceTaken, append_note, note_place

WHO = "laneway sessions note"


def read_text(argument: str, bytes_max: int) -> str:
    """The text of a note: the argument, or with `-` standard input without its last line break. Raises ValueError."""
    if argument == "-":
        given = sys.stdin.buffer.read(bytes_max + 2)  # with the line break that is left off
        given = given.removesuffix(b"\n")
    else:
        given = os.fsencode(argument)
    if len(given) > bytes_max:
        raise ValueError(f"is longer than limits.request_body_bytes ({bytes_max} bytes)")
    try:
        text = given.decode()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    if "\0" in text:
        raise ValueError("has a NUL in it; allowed is text without")
    if not text.strip():
        raise ValueError("is blank; allowed is text that says something")
    return text


async def append_locally(settings: Settings, session_key: str, text: str) -> int:
    """The number of the entry. Raises SessionNotFound, SessionBusy that names who holds the session, StartError."""
    if settings.store.url != EMBEDDED:
        raise StartError(
            "--local writes to the file in the state directory, and store.url names a server. "
            "Notes for sessions on a server are not available in this build."
        )
    store = SqliteBeside(database_path(settings.state_dir), synchronous=settings.store.synchronous)
    return await _Waiting(settings, session_key, store).append(text)


class _Waiting:
    """One note that waits for its place, for as long as the write lock may be waited for."""

    def __init__(self, settings: Settings, session_key: str, store: SqliteBeside) -> None:
        self._clock = SystemClock()
        self._ids = UuidIds()
        self._key = session_key
        self._store = store
        self._timeout_ms = settings.session.write_lock.acquire_timeout_ms
        self._until_s = self._clock.steady_s() + self._timeout_ms / 1000
        self._locks = SessionLocks(settings.state_dir, self._clock, timeout_ms=self._timeout_ms)

    async def append(self, text: str) -> int:
        pause_s = POLL_S_MIN
        while True:
            try:
                place = self._store.read(partial(note_place, session_key=self._key))
                if place is None:
                    raise SessionNotFound(f"There is no session {self._key}.")
                if place.run_id is None:
                    return await self._append_at(place, text)
                why = f"run {place.run_id} is under way"
            except PlaceTaken:
                why = "the session went on meanwhile"
            except StoreBusy:
                why = "the database is busy with other writes"
            left_s = self._left_s()
            if left_s <= 0:
                raise SessionBusy(
                    f"The session is busy: {why}, and waiting ended after session.write_lock.acquire_timeout_ms "
                    f"({self._timeout_ms} ms). Nothing was noted; try again."
                )
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(POLL_S_MAX, pause_s * 2)

    async def _append_at(self, place: NotePlace, text: str) -> int:
        self._locks.prepare()
        note = Note(self._ids.new(), self._ids.new(), text, self._clock.now_ms())
        async with self._locks.hold(self._key, WHO, timeout_ms=max(0, int(self._left_s() * 1000))):
            return self._store.write(partial(append_note, session_key=self._key, read=place, note=note))

    def _left_s(self) -> float:
        return self._until_s - self._clock.steady_s()
