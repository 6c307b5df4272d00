"""The few statements that the two dialects spell differently."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Table, func, literal_column, select
from sqlalchemy.dialects import postgresql, sqlite

from app.store import tables as t

_places = select(t.slot.c.n).where(t.slot.c.lane == "").with_for_update()
_clock: ColumnElement[int] = literal_column("CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)")


def insert_new(conn: Connection, table: Table) -> Any:
    """INSERT that does nothing when a row with one of its unique keys stands; `rowcount` tells which."""
    return _insert_new(conn.dialect.name, table)


@cache
def _insert_new(dialect: str, table: Table) -> Any:
    insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
    return insert(table).on_conflict_do_nothing().execution_options(preserve_rowcount=True)


def holds(conn: Connection, column: Column[str], part: str) -> ColumnElement[bool]:
    """Whether a text has this part, letter by letter."""
    find = func.instr if conn.dialect.name == "sqlite" else func.strpos
    return find(column, part) > 0


def lock_places(conn: Connection) -> None:
    """Count and give out places of lanes alone until the COMMIT. What is decided on is read behind this.

    Behind the locks of the session and the run (rule G1). SQLite has one writer, so there it is given.
    """
    if conn.dialect.name != "sqlite":
        conn.execute(_places)


def database_ms(conn: Connection, now_ms: int) -> int:
    """The database's clock, in milliseconds; where database and service share a machine, that of the caller."""
    return now_ms if conn.dialect.name == "sqlite" else int(conn.execute(select(_clock)).scalar_one())
