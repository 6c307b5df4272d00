"""The one tree of migrations: up and down on SQLite, written for both dialects, equal to the tables of the code."""

from __future__ import annotations

import io
import sqlite3
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from app.errors import StoreUnusable
from app.store.migrate import alembic_config, migrate_sqlite, revisions
from app.store.tables import metadata

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
