"""The one tree of migrations: up, down and up again on both dialects, equal to the tables of the code."""

from __future__ import annotations

import asyncio
import io
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, create_engine

from app.errors import StoreUnusable
from app.store.migrate import alembic_config, migrate_sqlite, revisions
from app.store.postgres_begin import open_database, run_alembic
from app.store.postgres_connection import engine
from app.store.tables import metadata
from tests.kit.database import PostgresDatabase
from tests.kit.postgres import PostgresServer
from tests.store.test_lending import fold_whole, put_run

PARTIAL_INDEXES = {
    "uq_run_running": "status = 'running'",
    "ix_run_running_lane": "status = 'running'",
    "ix_run_open": "status IN ('queued', 'running', 'recovering')",
    "uq_run_event_terminal": "terminal = 1",
    "ix_run_event_q": "q IS NOT NULL",
    "ix_run_unfolded": "folded_at IS NULL AND ended_at IS NOT NULL",
    "ix_session_waiting": "waiting_at IS NOT NULL",
}
"""Guards of the protocol that autogenerate does not compare."""


def schema(path: Path) -> dict[str, str]:
    """Name -> SQL of all that stands in a database, blanks folded."""
    with sqlite3.connect(path) as raw:
        rows = raw.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {name: " ".join(sql.split()) for name, sql in rows}


def test_a_new_database_is_what_the_code_expects(tmp_path: Path) -> None:
    path = tmp_path / "laneway.db"
    assert migrate_sqlite(path) == revisions()
    assert migrate_sqlite(path) == []
    with create_engine(f"sqlite:///{path}").connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "render_as_batch": True})
        assert compare_metadata(context, metadata) == []


def test_the_indexes_that_guard_the_protocol_have_their_conditions(tmp_path: Path) -> None:
    migrate_sqlite(tmp_path / "laneway.db")
    found = schema(tmp_path / "laneway.db")
    for name, condition in PARTIAL_INDEXES.items():
        assert found[name].endswith(f"WHERE {condition}"), found[name]
    assert found["uq_run_running"].startswith("CREATE UNIQUE INDEX")
    assert found["uq_run_event_terminal"].startswith("CREATE UNIQUE INDEX")


def test_long_texts_stand_in_a_table_that_has_room_for_them(tmp_path: Path) -> None:
    """In a table without row ids, a row of more than a quarter of a page takes one of its own."""
    migrate_sqlite(tmp_path / "laneway.db")
    found = schema(tmp_path / "laneway.db")
    assert "WITHOUT ROWID" not in found["transcript"] and "WITHOUT ROWID" in found["run_event"]


def test_every_revision_goes_down_and_up_again(tmp_path: Path) -> None:
    path = tmp_path / "laneway.db"
    migrate_sqlite(path)
    whole = schema(path)
    config = alembic_config(f"sqlite:///{path}")
    for _ in revisions():
        command.downgrade(config, "-1")
    assert set(schema(path)) <= {"alembic_version", "sqlite_sequence"}
    command.upgrade(config, "head")
    assert schema(path) == whole


@pytest.fixture
def empty(_postgres: Callable[[], PostgresServer]) -> Iterator[PostgresDatabase]:
    made = PostgresDatabase(_postgres(), empty=True)
    yield made
    made.drop()


def postgres_schema(database: PostgresDatabase) -> dict[str, str]:
    """Name -> definition of every column, index and constraint."""
    columns = "concat_ws(' ', data_type, is_nullable, column_default)"
    constraints = "SELECT conname AS name, pg_get_constraintdef(oid) AS made FROM pg_constraint"
    queries = (
        (
            f"SELECT table_name || '.' || column_name AS name, {columns} AS made FROM information_schema.columns "
            "WHERE table_schema = 'public'"
        ),
        "SELECT indexname AS name, indexdef AS made FROM pg_indexes WHERE schemaname = 'public'",
        f"{constraints} WHERE connamespace = 'public'::regnamespace",
    )
    with database.reading() as rows:
        return {row["name"]: row["made"] for query in queries for row in rows(query)}


def on_postgres(database: PostgresDatabase, action: Callable[..., None], target: str) -> None:
    async def run() -> None:
        made = engine(database.url)
        async with made.begin() as connection:
            await connection.run_sync(run_alembic, action, target)
        await made.dispose()

    asyncio.run(run())


def test_a_new_postgresql_database_is_what_the_code_expects(empty: PostgresDatabase) -> None:
    assert open_database(empty.url, migrate=True) == revisions()
    assert open_database(empty.url, migrate=False) == []

    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, metadata))

    async def compare() -> list[object]:
        made = engine(empty.url)
        async with made.connect() as connection:
            found = await connection.run_sync(differences)
        await made.dispose()
        return found

    assert asyncio.run(compare()) == []
    found = postgres_schema(empty)
    for name, condition in PARTIAL_INDEXES.items():
        words = set(re.findall(r"[a-z_]+", condition))
        assert words <= set(re.findall(r"[a-z_]+", found[name].partition(" WHERE ")[2])) | {"in"}, found[name]
    assert found["uq_run_running"].startswith("CREATE UNIQUE INDEX")
    assert found["uq_run_event_terminal"].startswith("CREATE UNIQUE INDEX")


def test_every_revision_goes_down_and_up_again_on_postgresql(empty: PostgresDatabase) -> None:
    open_database(empty.url, migrate=True)
    whole = postgres_schema(empty)
    for _ in revisions():
        on_postgres(empty, command.downgrade, "-1")
    assert [name for name in postgres_schema(empty) if not name.startswith("alembic_version")] == []
    on_postgres(empty, command.upgrade, "head")
    assert postgres_schema(empty) == whole


def test_a_migration_that_fails_leaves_the_schema_as_it_was(empty: PostgresDatabase) -> None:
    empty.server.run(empty.url, "CREATE TABLE step_mark (other INTEGER)")  # in the way of a later revision
    before = postgres_schema(empty)
    with pytest.raises(StoreUnusable, match="step_mark"):
        open_database(empty.url, migrate=True)
    assert postgres_schema(empty) == before


@pytest.mark.parametrize("way", ["up", "down"])
def test_the_same_tree_makes_sql_for_postgresql(way: str) -> None:
    config = alembic_config("postgresql+asyncpg://somebody@localhost/laneway")
    config.output_buffer = out = io.StringIO()
    if way == "up":
        command.upgrade(config, "head", sql=True)
        made = " ".join(out.getvalue().split())
        for name, condition in PARTIAL_INDEXES.items():
            assert f"INDEX {name} " in made
            assert f"WHERE {condition}" in made
        assert "BIGSERIAL" in made
    else:
        command.downgrade(config, "head:base", sql=True)
        assert "DROP TABLE run" in out.getvalue()


def test_rows_get_their_texts_back_on_the_way_down(tmp_path: Path, empty: PostgresDatabase) -> None:
    """A revision without texts kept once has them whole again, and a transcript that is as it was."""
    path = tmp_path / "laneway.db"
    migrate_sqlite(path)
    open_database(empty.url, migrate=True)
    engines = {
        create_engine(f"sqlite:///{path}"): lambda: command.downgrade(alembic_config(f"sqlite:///{path}"), "0004"),
        create_engine(empty.url.replace("postgresql:", "postgresql+psycopg:", 1)): lambda: on_postgres(
            empty, command.downgrade, "0004"
        ),
    }
    texts = (
        "SELECT payload FROM run_event ORDER BY seq",
        "SELECT input, reply FROM run_text",
        "SELECT result FROM tool_call",
    )
    for engine_, down in engines.items():

        def everything(made: Engine = engine_) -> list[tuple[Any, ...]]:
            queries = (*texts, "SELECT * FROM transcript ORDER BY entry_no")
            with made.connect() as conn:
                return [tuple(row) for query in queries for row in conn.exec_driver_sql(query)]

        with engine_.begin() as conn:
            put_run(conn)
        whole = everything()
        with engine_.begin() as conn:
            fold_whole(conn)
        assert everything() != whole
        engine_.dispose()
        down()
        assert everything() == whole
        engine_.dispose()


def test_a_newer_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "laneway.db"
    migrate_sqlite(path)
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreUnusable, match=r"revision 9999, newer than this code"):
        migrate_sqlite(path)


def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "laneway.db"
    path.write_bytes(b"not a database, but somebody's notes" * 200)
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match="corrupt or no SQLite database"):
        migrate_sqlite(path)
    assert path.read_bytes() == before
