"""Databases with all tables and nothing in them, for tests of single steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from sqlalchemy import Connection, Engine, create_engine

from app.store import tables as t
from tests.kit.database import Make, PostgresDatabase, StoreKind
from tests.kit.postgres import PostgresServer


@pytest.fixture(scope="module")
def bases(_postgres: Callable[[], PostgresServer]) -> Iterator[dict[StoreKind, Make]]:
    """An empty database of each kind, thrown away behind each use."""
    with contextlib.ExitStack() as stack:

        @cache
        def other() -> Engine:
            made = PostgresDatabase(_postgres())
            stack.callback(made.drop)
            engine = create_engine(made.url.replace("postgresql:", "postgresql+psycopg:", 1))
            stack.callback(engine.dispose)
            return engine

        yield {"sqlite": _in_memory, "postgresql": lambda: _rolled_back(other())}


@contextlib.contextmanager
def _in_memory() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    t.metadata.create_all(engine)
    with engine.begin() as conn:
        yield conn
    engine.dispose()


@contextlib.contextmanager
def _rolled_back(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as conn:
        conn.exec_driver_sql("SET session_replication_role = replica")  # runs without their sessions
        yield conn
        conn.rollback()
