"""One short transaction at a time on a state directory's SQLite file, by a process beside the service."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from app.errors import StoreBusy, StoreUnusable
from app.store.migrate import missing_revisions, unusable
from app.store.sqlite import sqlite_engine

T = TypeVar("T")

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class SqliteBeside:
    """Makes no file and changes no table: what is missing or of another version is refused. Blocks for moments."""

    def __init__(self, path: Path, *, synchronous: str) -> None:
        """Raises StoreUnusable when there is no such file."""
        if not path.is_file():
            raise StoreUnusable(f"There is no database {path}. Name the state directory of the service (--state-dir).")
        self._path = path
        self._engine = sqlite_engine(path, synchronous=synchronous)

    def write(self, step: Callable[[Connection], T]) -> T:
        """Run a step; what it raises undoes it. Raises StoreBusy when another writer is at it, StoreUnusable."""
        return self._transact("BEGIN IMMEDIATE", step)

    def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query in one snapshot. Raises as `write`."""
        return self._transact("BEGIN", query)

    def _transact(self, begin: str, step: Callable[[Connection], T]) -> T:
        try:
            with self._engine.connect() as connection:
                raw: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[assignment]
                raw.execute(begin)
                try:
                    self._check_version(raw)
                    value = step(connection)
                    raw.execute("COMMIT")
                    return value
                finally:
                    # Only what was not committed is left to undo; a COMMIT that was refused as busy too.
                    if raw.in_transaction:
                        raw.execute("ROLLBACK")
        except (sqlite3.Error, DBAPIError) as problem:
            cause = getattr(problem, "orig", None) or problem
            # The low byte is the code, what is above it says more of it.
            if getattr(cause, "sqlite_errorcode", 0) & 0xFF in _BUSY:
                raise StoreBusy("The database is busy with other writes; nothing was stored. Try again.") from None
            raise unusable(self._path, cause) from None

    def _check_version(self, raw: sqlite3.Connection) -> None:
        """Inside the transaction, so that no migration comes between."""
        found = raw.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
        row = raw.execute("SELECT version_num FROM alembic_version").fetchone() if found else None
        if missing_revisions(None if row is None else str(row[0]), str(self._path)):
            raise StoreUnusable(f"The database {self._path} is older than this code; run `laneway migrate`.")
