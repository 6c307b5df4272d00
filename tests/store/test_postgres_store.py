"""The PostgreSQL store where the network and the server fail: each step is there once, or refused, and told truly."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy import Connection, text

from app.clock import SystemClock
from app.errors import StoreBusy
from app.store.contract import StoreClosed
from app.store.postgres import PostgresStore
from tests.kit.database import PostgresDatabase
from tests.kit.pg_proxy import Cut, PgProxy
from tests.kit.postgres import PostgresServer

TABLE = "CREATE TABLE note (id INTEGER PRIMARY KEY, n INTEGER NOT NULL DEFAULT 0)"
COUNT_UP = text("UPDATE note SET n = n + 1 WHERE id = :id")
READ = text("SELECT n FROM note WHERE id = :id")
ROWS = 4


@pytest.fixture
def database(_postgres: Callable[[], PostgresServer]) -> Any:
    made = PostgresDatabase(_postgres())
    made.server.run(made.url, TABLE)
    made.server.run(made.url, f"INSERT INTO note (id) SELECT generate_series(1, {ROWS})")
    yield made
    made.drop()


@pytest.fixture
async def store(database: PostgresDatabase) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(database.url, SystemClock(), connections=3, queue_steps_max=100)
    yield opened
    await opened.close()


def count_up(row: int, conn: Connection) -> int:
    """Not idempotent on purpose: what is done twice shows."""
    conn.execute(COUNT_UP, {"id": row})
    return int(conn.execute(READ, {"id": row}).scalar_one())


def counted(database: PostgresDatabase, row: int) -> int:
    with database.reading() as rows:
        return int(rows("SELECT n FROM note WHERE id = ?", row)[0]["n"])


@pytest.mark.parametrize("how", ["before", "after", "late"])
async def test_a_step_whose_commit_was_not_answered_is_done_once(database: PostgresDatabase, how: Cut) -> None:
    """G4: the same step is not run again when it was committed, and its value is that of the run that counts."""
    cuts: list[Cut | None] = [how]
    told: list[int] = []
    async with PgProxy(database.server.socket, lambda: cuts.pop() if cuts else None) as proxy:
        store = PostgresStore(proxy.url(database.url), SystemClock(), connections=1, queue_steps_max=10)
        assert await store.write(lambda conn: count_up(1, conn), told.append) == 1
        assert proxy.cuts == [how]
        assert await store.write(lambda conn: count_up(1, conn)) == 2
        await store.close()
    assert told == [1]
    assert counted(database, 1) == 2


async def test_commits_that_are_cut_at_random_lose_and_double_nothing(database: PostgresDatabase) -> None:
    chance = random.Random(7)
    ways: list[Cut | None] = ["before", "after", "late", None, None, None]
    async with PgProxy(database.server.socket, lambda: chance.choice(ways)) as proxy:
        store = PostgresStore(proxy.url(database.url), SystemClock(), connections=4, queue_steps_max=1000)
        steps = [(1 + number % ROWS) for number in range(80)]
        values = await asyncio.gather(*(store.write(lambda conn, row=row: count_up(row, conn)) for row in steps))  # type: ignore[misc]
        assert len(proxy.cuts) > 20
        proxy._decide = lambda: None
        await store.close()
    for row in range(1, ROWS + 1):
        mine = sorted(value for value, at in zip(values, steps, strict=True) if at == row)
        assert mine == list(range(1, 80 // ROWS + 1)), "a step was lost, doubled or answered with another's value"
        assert counted(database, row) == 80 // ROWS


async def test_a_server_that_restarts_under_load_loses_nothing() -> None:
    with PostgresServer() as server:
        database = PostgresDatabase(server)
        server.run(database.url, TABLE)
        server.run(database.url, "INSERT INTO note (id) VALUES (1)")
        store = PostgresStore(database.url, SystemClock(), connections=3, queue_steps_max=1000)
        assert await store.write(lambda conn: count_up(1, conn)) == 1
        with server.down():
            waiting = [store.submit(lambda conn: count_up(1, conn)) for _ in range(30)]
            reading = asyncio.create_task(store.read(lambda conn: conn.execute(READ, {"id": 1}).scalar_one()))
            await asyncio.sleep(0.1)  # they find nobody there
            assert not any(step.done() for step in waiting) and not reading.done()
        assert sorted(await asyncio.gather(*waiting)) == list(range(2, 32))
        assert await reading in range(1, 32)
        await store.close()
        assert counted(database, 1) == 31


async def test_a_reader_says_busy_when_the_server_stays_away(store: PostgresStore, database: PostgresDatabase) -> None:
    database.server.drop(database.url)
    with pytest.raises(Exception, match="does not exist"):
        await store.read(lambda conn: conn.execute(READ, {"id": 1}).scalar_one())
    away = PostgresStore("postgresql://laneway@127.0.0.1:1/none", SystemClock(), connections=1, queue_steps_max=10)
    with pytest.raises(StoreBusy):
        await away.read(lambda conn: None, patience_s=0.1)
    step = away.submit(lambda conn: None)
    await away.close()
    with pytest.raises(StoreClosed):
        await step


async def test_a_database_that_is_gone_ends_the_process(store: PostgresStore, database: PostgresDatabase) -> None:
    database.server.drop(database.url)
    with pytest.raises(StoreClosed):
        await store.write(lambda conn: count_up(1, conn))
    assert "does not exist" in str(await store.failed)


async def test_steps_that_lock_each_other_out_are_both_done(store: PostgresStore, database: PostgresDatabase) -> None:
    """The server refuses one of them; it is tried again."""
    met: list[int] = []

    def both(first: int, second: int, conn: Connection) -> None:
        conn.execute(COUNT_UP, {"id": first})
        met.append(first)
        conn.execute(text("SELECT pg_sleep(0.2)"))  # so that the other has its first row by now
        conn.execute(COUNT_UP, {"id": second})

    await asyncio.gather(store.write(lambda conn: both(1, 2, conn)), store.write(lambda conn: both(2, 1, conn)))
    assert len(met) == 3, "they did not meet"
    assert (counted(database, 1), counted(database, 2)) == (2, 2)


async def test_a_step_that_only_looked_leaves_no_mark_and_a_closed_store_none(database: PostgresDatabase) -> None:
    store = PostgresStore(database.url, SystemClock(), connections=2, queue_steps_max=10)
    marks = "SELECT count(*) AS n FROM step_mark"
    for _ in range(4):
        await store.write(lambda conn: conn.execute(READ, {"id": 1}).scalar_one())
    with database.reading() as rows:
        assert rows(marks) == [{"n": 0}]
    await store.write(lambda conn: count_up(1, conn))
    with database.reading() as rows:
        assert rows(marks) == [{"n": 1}]
    await store.close()
    with database.reading() as rows:
        assert rows(marks) == [{"n": 0}]


async def test_every_connection_has_its_bounds(store: PostgresStore) -> None:
    wanted = {
        "application_name": "laneway",
        "idle_in_transaction_session_timeout": "5s",
        "lock_timeout": "5s",
        "statement_timeout": "30s",
        "transaction_isolation": "read committed",
        "transaction_read_only": "off",
    }

    def shown(conn: Connection) -> dict[str, str]:
        return {name: conn.execute(text(f"SHOW {name}")).scalar_one() for name in wanted}

    assert await store.write(shown) == wanted
    reading = {"transaction_isolation": "repeatable read", "transaction_read_only": "on"}
    assert await store.read(shown) == {**wanted, **reading}


async def test_text_with_nul_is_found_nowhere_and_stored_without(store: PostgresStore) -> None:
    def look(conn: Connection) -> Any:
        return conn.execute(text("SELECT :given || '' AS kept"), {"given": "a\0b"}).scalar_one()

    assert await store.read(look) == "a\ufffdb"
