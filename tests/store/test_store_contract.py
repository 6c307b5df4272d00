"""What every store does: a refusal undoes its own step alone, no answer comes before the COMMIT, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from app.clock import SystemClock
from app.store.contract import StepUnsettled, Store, StoreClosed
from app.store.postgres import PostgresStore
from app.store.sqlite import SqliteStore
from tests.kit.database import Database, PostgresDatabase, SqliteDatabase, StoreKind
from tests.kit.postgres import PostgresServer

INSERT = text("INSERT INTO note (value) VALUES (:value)")
VALUES = text("SELECT value FROM note ORDER BY value")
TABLE = "CREATE TABLE note (value INTEGER PRIMARY KEY)"
QUEUE = 8


class Opened:
    """A store with one table, and a way to look into and to lock its database beside it."""

    def __init__(self, store: Store, database: Database, locked: Callable[[], AbstractContextManager[Any]]) -> None:
        self.store = store
        self.database = database
        self.locked = locked

    def kept(self) -> list[int]:
        with self.database.reading() as rows:
            return [row["value"] for row in rows("SELECT value FROM note ORDER BY value")]


@pytest.fixture
async def opened(
    store_kind: StoreKind, tmp_path: Path, _postgres: Callable[[], PostgresServer]
) -> AsyncIterator[Opened]:
    if store_kind == "sqlite":
        path = tmp_path / "test.db"
        with contextlib.closing(sqlite3.connect(path)) as raw:
            raw.execute(TABLE)
        file = SqliteDatabase(path)
        made: Store = SqliteStore(path, SystemClock(), synchronous="full", readers=2, queue_steps_max=QUEUE)
        one = Opened(made, file, file.locked)
    else:
        database = PostgresDatabase(_postgres())
        database.server.run(database.url, TABLE)
        made = PostgresStore(database.url, SystemClock(), connections=2, queue_steps_max=QUEUE)
        one = Opened(made, database, lambda: database.locked("note"))
    yield one
    await one.store.close()
    one.database.drop()


def values(conn: Connection) -> list[int]:
    return list(conn.execute(VALUES).scalars())


def put(value: int, conn: Connection) -> int:
    conn.execute(INSERT, {"value": value})
    return value


class Refused(Exception):
    """What a step raises to refuse."""


async def test_a_refused_step_leaves_nothing_and_harms_no_other(opened: Opened) -> None:
    def refuse(conn: Connection) -> None:
        put(2, conn)
        raise Refused

    store = opened.store
    group = [store.submit(lambda conn: put(1, conn)), store.submit(refuse), store.submit(lambda conn: put(3, conn))]
    outcomes = await asyncio.gather(*group, return_exceptions=True)
    assert outcomes[0] == 1
    assert isinstance(outcomes[1], Refused)
    assert outcomes[2] == 3
    assert await store.read(values) == [1, 3]


async def test_a_breach_of_a_unique_key_refuses_its_step_alone(opened: Opened) -> None:
    def twice(conn: Connection) -> None:
        put(5, conn)
        put(4, conn)

    assert await opened.store.write(lambda conn: put(4, conn)) == 4
    with pytest.raises(IntegrityError):
        await opened.store.write(twice)
    assert await opened.store.read(values) == [4]
    assert await opened.store.write(lambda conn: put(6, conn)) == 6


async def test_what_follows_the_commit_finds_it_committed(opened: Opened) -> None:
    seen: list[list[int]] = []
    await opened.store.write(lambda conn: put(7, conn), lambda _: seen.append(opened.kept()))
    assert seen == [[7]]


async def test_what_follows_the_commit_and_fails_is_told_to_the_caller(opened: Opened) -> None:
    def fails(_: int) -> None:
        raise Refused

    with pytest.raises(Refused):
        await opened.store.write(lambda conn: put(7, conn), fails)
    assert opened.kept() == [7]
    assert await opened.store.write(lambda conn: put(8, conn)) == 8


async def test_a_caller_that_leaves_neither_stops_its_step_nor_what_follows_it(opened: Opened) -> None:
    told: list[int] = []
    with opened.locked():
        caller = asyncio.create_task(opened.store.write(lambda conn: put(5, conn), told.append))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
    await opened.store.close()
    assert opened.kept() == [5]
    assert told == [5]


async def test_the_queue_is_bounded_and_says_so(opened: Opened) -> None:
    store = opened.store
    with opened.locked():
        queued = [store.submit(lambda conn, value=value: put(value, conn)) for value in range(QUEUE)]  # type: ignore[misc]
        with pytest.raises(StepUnsettled) as unsettled:
            await store.write(lambda conn: put(100, conn), patience_s=60)
        assert not unsettled.value.begun
        assert store.stats().queued_steps == QUEUE
    assert sorted(await asyncio.gather(*queued)) == list(range(QUEUE))
    assert await store.write(lambda conn: put(100, conn), patience_s=60) == 100
    assert store.stats().queued_steps == 0


async def test_a_step_that_is_given_up_says_whether_it_may_still_happen(opened: Opened) -> None:
    """Those that never began never happen; one that waits inside the database may."""
    store = opened.store
    unsettled: list[tuple[int, bool]] = []

    async def impatient(value: int) -> None:
        try:
            await store.write(lambda conn: put(value, conn), patience_s=0.3)
        except StepUnsettled as problem:
            unsettled.append((value, problem.begun))

    with opened.locked():
        await asyncio.gather(*(impatient(value) for value in range(6)))
    assert len(unsettled) == 6
    await store.write(lambda conn: put(100, conn))
    await store.close()
    begun = [value for value, begun in unsettled if begun]
    assert opened.kept() == [*begun, 100]


async def test_a_foreign_lock_holds_steps_up_and_loses_none(opened: Opened) -> None:
    with opened.locked():
        waiting = [opened.store.submit(lambda conn, value=value: put(value, conn)) for value in range(3)]  # type: ignore[misc]
        await asyncio.sleep(0.6)  # longer than one try of the engine that polls
        assert opened.kept() == []
    assert await asyncio.gather(*waiting) == [0, 1, 2]
    assert await opened.store.read(values) == [0, 1, 2]


async def test_a_reader_cannot_write_and_sees_one_instant(opened: Opened) -> None:
    with pytest.raises(Exception, match=r"readonly|read-only"):
        await opened.store.read(lambda conn: put(1, conn))
    database = opened.database

    def twice(conn: Connection) -> tuple[list[int], list[int]]:
        first = values(conn)
        with _writing(database) as write:
            write("INSERT INTO note (value) VALUES (1)")
        return first, values(conn)

    assert await opened.store.read(twice) == ([], [])
    assert await opened.store.read(values) == [1]


async def test_after_the_close_nothing_is_taken_and_nothing_is_left(opened: Opened) -> None:
    last = opened.store.submit(lambda conn: put(1, conn))
    await opened.store.close()
    assert await last == 1
    with pytest.raises(StoreClosed):
        await opened.store.write(values)
    opened.database.check_free()


@contextlib.contextmanager
def _writing(database: Database) -> Any:
    """A function that writes beside the store."""
    if isinstance(database, SqliteDatabase):
        with contextlib.closing(sqlite3.connect(database.path, isolation_level=None, timeout=10)) as raw:
            yield raw.execute
    else:
        assert isinstance(database, PostgresDatabase)
        yield lambda sql: database.server.run(database.url, sql)
