"""The SQLite store: a group is one commit, a refusal undoes its own step alone, no answer before the COMMIT."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from app.clock import SystemClock
from app.store.contract import StepUnsettled, StoreClosed
from app.store.sqlite import SqliteStore

INSERT = text("INSERT INTO note (value) VALUES (:value)")
VALUES = text("SELECT value FROM note ORDER BY value")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    with sqlite3.connect(tmp_path / "test.db") as raw:
        raw.execute("CREATE TABLE note (value INTEGER PRIMARY KEY)")
    opened = SqliteStore(tmp_path / "test.db", SystemClock(), synchronous="full", readers=2, queue_steps_max=8)
    yield opened
    await opened.close()


def values(conn: Connection) -> list[int]:
    return list(conn.execute(VALUES).scalars())


def put(value: int, conn: Connection) -> int:
    conn.execute(INSERT, {"value": value})
    return value


class Refused(Exception):
    """What a step raises to refuse."""


async def held_writer(store: SqliteStore) -> threading.Event:
    """Keep the writer busy until the event is set, so that what is written next stands in one group."""
    release, begun = threading.Event(), threading.Event()

    def wait(_: Connection) -> None:
        begun.set()
        release.wait(10)

    store.submit(wait)
    await asyncio.to_thread(begun.wait, 10)
    return release


async def test_a_refused_step_of_a_group_leaves_nothing_and_harms_no_other(store: SqliteStore) -> None:
    def refuse(conn: Connection) -> None:
        put(2, conn)
        raise Refused

    release = await held_writer(store)
    group = [store.submit(lambda conn: put(1, conn)), store.submit(refuse), store.submit(lambda conn: put(3, conn))]
    release.set()
    outcomes = await asyncio.gather(*group, return_exceptions=True)
    assert outcomes[0] == 1
    assert isinstance(outcomes[1], Refused)
    assert outcomes[2] == 3
    assert await store.read(values) == [1, 3]


async def test_what_follows_the_commit_finds_it_committed(store: SqliteStore) -> None:
    seen: list[list[int]] = []

    def then(_: int) -> None:
        with sqlite3.connect(store._path) as raw:
            seen.append([row[0] for row in raw.execute("SELECT value FROM note")])

    await store.write(lambda conn: put(7, conn), then)
    assert seen == [[7]]


async def test_a_caller_that_leaves_neither_stops_its_step_nor_what_follows_it(store: SqliteStore) -> None:
    told: list[int] = []
    release = await held_writer(store)
    caller = asyncio.create_task(store.write(lambda conn: put(5, conn), told.append))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    release.set()
    assert await store.write(values) == [5]
    assert told == [5]


async def test_a_step_that_ran_out_of_patience_before_it_began_never_happens(store: SqliteStore) -> None:
    release = await held_writer(store)
    with pytest.raises(StepUnsettled) as unsettled:
        await store.write(lambda conn: put(9, conn), patience_s=0.01)
    assert not unsettled.value.begun
    release.set()
    assert await store.write(values) == []


async def test_the_queue_is_bounded_and_says_so(store: SqliteStore) -> None:
    release = await held_writer(store)
    queued = [store.submit(lambda conn, value=value: put(value, conn)) for value in range(7)]
    with pytest.raises(StepUnsettled):
        await store.write(lambda conn: put(100, conn), patience_s=5)
    assert store.stats().queued_steps == 8
    release.set()
    await asyncio.gather(*queued)
    assert await store.write(lambda conn: put(100, conn), patience_s=5) == 100
    assert store.stats().queued_steps == 0


async def test_a_foreign_lock_holds_steps_up_and_loses_none(store: SqliteStore) -> None:
    raw = sqlite3.connect(store._path, isolation_level=None)
    raw.execute("BEGIN IMMEDIATE")
    waiting = [store.submit(lambda conn, value=value: put(value, conn)) for value in range(3)]
    with pytest.raises(StepUnsettled) as unsettled:
        await store.write(lambda conn: put(50, conn), patience_s=0.2)
    assert not unsettled.value.begun
    raw.execute("COMMIT")
    raw.close()
    assert await asyncio.gather(*waiting) == [0, 1, 2]
    assert await store.read(values) == [0, 1, 2]


async def test_a_transaction_that_the_database_ended_is_tried_again_step_by_step(store: SqliteStore) -> None:
    """A full disk ends the transaction inside a step; what stood before it in the group must not be lost with it."""
    failures = iter([True])

    def breaks_once(conn: Connection) -> int:
        put(2, conn)
        if next(failures, False):
            conn.connection.driver_connection.execute("ROLLBACK")  # type: ignore[union-attr]
            raise sqlite3.OperationalError("database or disk is full")
        return 2

    release = await held_writer(store)
    group = [
        store.submit(lambda conn: put(1, conn)),
        store.submit(breaks_once),
        store.submit(lambda conn: put(3, conn)),
    ]
    release.set()
    assert await asyncio.gather(*group) == [1, 2, 3]
    assert await store.read(values) == [1, 2, 3]


async def test_a_reader_cannot_write_and_sees_one_instant(store: SqliteStore) -> None:
    with pytest.raises(Exception, match="readonly"):
        await store.read(lambda conn: put(1, conn))
    begun, go_on = threading.Event(), threading.Event()

    def twice(conn: Connection) -> tuple[list[int], list[int]]:
        first = values(conn)
        begun.set()
        go_on.wait(10)
        return first, values(conn)

    reading = asyncio.create_task(store.read(twice))
    await asyncio.to_thread(begun.wait, 10)
    await store.write(lambda conn: put(1, conn))
    go_on.set()
    assert await reading == ([], [])
    assert await store.read(values) == [1]


async def test_after_the_close_nothing_is_taken_and_nothing_is_left(store: SqliteStore) -> None:
    last = store.submit(lambda conn: put(1, conn))
    await store.close()
    assert await last == 1
    with pytest.raises(StoreClosed):
        await store.write(values)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("laneway")]
