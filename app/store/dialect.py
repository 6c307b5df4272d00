"""The few statements that the two dialects spell differently."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_new(conn: Connection, table: Table) -> Any:
    """INSERT that does nothing when a row with one of its unique keys stands; `rowcount` tells which."""
    return _insert_new(conn.dialect.name, table)


@cache
def _insert_new(dialect: str, table: Table) -> Any:
    insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
    return insert(table).on_conflict_do_nothing()
