"""The database of a service under test, as a test looks into it: beside the service, and on one snapshot."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import psutil
import psycopg
from psycopg.rows import dict_row
from sqlalchemy import Connection, NullPool, create_engine

from tests.kit.postgres import PostgresServer

StoreKind = Literal["sqlite", "postgresql"]
KINDS: tuple[StoreKind, ...] = ("sqlite", "postgresql")
FILE = "laneway.db"
FREE_WITHIN_S = 2.0

T = TypeVar("T")
Make = Callable[[], contextlib.AbstractContextManager[Connection]]
"""Gives a connection to an empty database with all tables, for a while."""

Rows = Callable[..., list[dict[str, Any]]]


class Database(Protocol):
    """`settings` are what the service needs to find it."""

    @property
    def settings(self) -> dict[str, Any]: ...

    def reading(self) -> contextlib.AbstractContextManager[Rows]:
        """A query function on one snapshot. Its SQL is what both dialects take, with `?` for values."""

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Somebody else's transaction holds up every step inside the block."""

    def step(self, step: Callable[[Connection], T]) -> T:
        """A step of the store's, taken by somebody beside the service."""

    def check_free(self) -> None:
        """Nobody has a transaction open."""

    def handles(self, pid: int) -> int:
        """Open files or connections that a process has of it."""

    def check_closed(self) -> None:
        """The service has gone in order and has left nothing open."""

    def drop(self) -> None:
        """Nothing of it is needed any more."""


def _step(url: str, step: Callable[[Connection], T]) -> T:
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as conn:
        return step(conn)


class SqliteDatabase:
    """The file in a state directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def settings(self) -> dict[str, Any]:
        return {}

    @contextlib.contextmanager
    def reading(self) -> Iterator[Rows]:
        connection = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, timeout=10, isolation_level=None)
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("BEGIN")
            yield lambda sql, *values: [dict(row) for row in connection.execute(sql, values)]
        finally:
            connection.close()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None, timeout=10)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")

    def step(self, step: Callable[[Connection], T]) -> T:
        return _step(f"sqlite:///{self.path}", step)

    def check_free(self) -> None:
        with contextlib.closing(sqlite3.connect(self.path, timeout=5, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert busy == 0, "a reader holds the log"

    def handles(self, pid: int) -> int:
        return sum(opened.path.startswith(str(self.path)) for opened in psutil.Process(pid).open_files())

    def check_closed(self) -> None:
        wal = self.path.with_name(self.path.name + "-wal")
        assert not wal.exists() or wal.stat().st_size == 0, "the log of the database was left behind"

    def drop(self) -> None:
        """It goes with its folder."""


class PostgresDatabase:
    """One database of a server."""

    def __init__(self, server: PostgresServer, *, empty: bool = False) -> None:
        self.server = server
        self.url = server.database(empty=empty)

    @property
    def settings(self) -> dict[str, Any]:
        return {"store.url": self.url}

    @contextlib.contextmanager
    def reading(self) -> Iterator[Rows]:
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True

            def rows(sql: str, *values: Any) -> list[dict[str, Any]]:
                written = sql.replace("%", "%%").replace("?", "%s") if values else sql
                return connection.execute(written, values or None).fetchall()

            yield rows

    @contextlib.contextmanager
    def locked(self, tables: str = "session, run") -> Iterator[None]:
        with psycopg.connect(self.url) as other:
            other.execute(f"LOCK TABLE {tables} IN EXCLUSIVE MODE")
            yield
            other.rollback()

    def step(self, step: Callable[[Connection], T]) -> T:
        return _step(self.url.replace("postgresql:", "postgresql+psycopg:", 1), step)

    def check_free(self) -> None:
        """What is about to end is waited for: the sweep asks each second."""
        query = (
            "SELECT pid, xact_start, state, query FROM pg_stat_activity WHERE datname = current_database() "
            "AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
        )
        with psycopg.connect(self.url, autocommit=True) as connection:
            held = {row[:2]: row for row in connection.execute(query)}
            until_s = time.monotonic() + FREE_WITHIN_S
            while held and time.monotonic() < until_s:
                time.sleep(0.01)  # nobody tells when another one's transaction ends
                now = {row[:2] for row in connection.execute(query)}
                held = {name: row for name, row in held.items() if name in now}
        assert not held, list(held.values())

    def handles(self, pid: int) -> int:
        name = self.url.partition("@/")[2].partition("?")[0]
        query = f"SELECT pid FROM pg_stat_activity WHERE datname = '{name}' AND application_name LIKE 'laneway%'"
        return len(self.server.admin(query))

    def check_closed(self) -> None:
        until_s = time.monotonic() + 10
        while self.handles(0):
            assert time.monotonic() < until_s, "connections were left behind"
            time.sleep(0.01)  # the server's side of a closed connection ends a moment later

    def drop(self) -> None:
        self.server.drop(self.url)
