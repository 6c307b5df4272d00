"""Connections to PostgreSQL: how they are opened, what stands on each of them, and what their failures mean."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool

from app.domain.wellformed import storable

DIALECT = "postgresql+asyncpg://"
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 35.0
"""A statement that got no answer by then has lost its connection; the server itself gives up before."""

SESSION = {
    "application_name": "laneway",
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "5000",
    "lock_timeout": "5000",
    "statement_timeout": "30000",
    "timezone": "UTC",
}
"""Settings of every connection. A paused process would else hold its session's row for ever."""

STATEMENTS_CACHED = 512

FATAL = ("28", "3D", "42501", "42703", "42P01")
"""SQLSTATE of what no waiting mends: not let in, no such database, no right, another schema."""

_PASSING = ("08", "25", "40", "53", "55", "57", "58")
"""Of what may pass: connection, failed or read-only transaction, conflict, resources, lock, shutdown, system."""

READ_ONLY = "25006"
"""To a step: the server is a replica for now. To a query: it tried to write."""


def connector(url: str) -> Callable[[], Awaitable[Any]]:
    """Opens a connection of ours to a libpq address (`postgresql://...`)."""

    async def connect() -> Any:
        return await asyncpg.connect(
            url, timeout=CONNECT_TIMEOUT_S, command_timeout=ANSWER_TIMEOUT_S, server_settings=SESSION
        )

    return connect


def _connect_args(url: str) -> dict[str, Any]:
    return {"async_creator_fn": connector(url), "prepared_statement_cache_size": STATEMENTS_CACHED}


def engine(url: str) -> AsyncEngine:
    """An engine without a pool over `connector`."""
    made = create_async_engine(DIALECT, connect_args=_connect_args(url), poolclass=NullPool)
    event.listen(made.sync_engine, "before_cursor_execute", _without_nul, retval=True)
    return made


def read_engine(url: str, size: int) -> AsyncEngine:
    """Each transaction of it is read only and sees one instant."""
    made = create_async_engine(
        DIALECT, connect_args=_connect_args(url), poolclass=AsyncAdaptedQueuePool, pool_size=size, max_overflow=0
    )
    event.listen(made.sync_engine, "before_cursor_execute", _without_nul, retval=True)
    return made.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def _without_nul(
    _conn: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool
) -> tuple[str, Any]:
    """No text of PostgreSQL holds NUL. What is kept has none by then; what is looked for is found nowhere."""
    if many:
        return statement, [_plain(row) for row in parameters]
    return statement, _plain(parameters)


def _plain(values: Any) -> Any:
    if not any(isinstance(value, str) and "\0" in value for value in values):
        return values
    return tuple(storable(value) if isinstance(value, str) else value for value in values)


def sqlstate(problem: BaseException) -> str:
    """SQLSTATE, empty when the server said none."""
    return str(getattr(getattr(problem, "orig", problem), "sqlstate", None) or "")


def passes(problem: BaseException) -> bool:
    """Whether trying again may help: the connection is gone, or the server said so."""
    if isinstance(problem, DBAPIError):
        state = sqlstate(problem)
        return problem.connection_invalidated or state.startswith(_PASSING)
    if isinstance(problem, asyncpg.PostgresError):
        return sqlstate(problem).startswith(_PASSING)
    return isinstance(problem, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError)


def line(problem: BaseException) -> str:
    """The failure in a line, without statements and values."""
    cause = getattr(problem, "orig", None) or problem.__cause__ or problem
    return f"{type(cause).__name__}: {cause}".splitlines()[0][:300]
