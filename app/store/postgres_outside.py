"""What somebody outside asks a PostgreSQL database: who holds its lease, and whether a pooler stands before it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from app.store.postgres_begin import CLOSE_WITHIN_S
from app.store.postgres_connection import CONNECT_TIMEOUT_S, SESSION

LEASE_CONNECTION = "laneway lease "
"""How the connection that renews a lease is named, in front of its worker's id; that tells it from all others."""

TIMEOUTS = ("idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout")
"""Settings of each connection that the service relies on."""

ASKED = 3

_POOLED = ("26000", "42P05")
"""SQLSTATE of a prepared statement that is not there, or there already: it belongs to another server process."""

_HOLDERS = """
    SELECT DISTINCT ON (worker.id) worker.host, worker.pid, worker.started_at, worker.lease_until,
           worker.lease_until >= CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT) AS held,
           activity.pid AS backend, activity.usename, host(activity.client_addr) AS address, activity.client_port,
           CAST(EXTRACT(EPOCH FROM activity.backend_start) * 1000 AS BIGINT) AS since
    FROM worker LEFT JOIN pg_stat_activity AS activity
         ON activity.datname = current_database() AND activity.application_name = $1 || worker.id
    WHERE worker.dead_at IS NULL ORDER BY worker.id, activity.backend_start DESC NULLS LAST
"""


@dataclass(frozen=True, slots=True)
class Holder:
    """A worker that has not signed off. `held`: its lease is not over. `backend`: the server process of its connection,
    None when it has none; `since` is None where the role that asks may not see more of it."""

    host: str
    pid: int
    started_at: int
    lease_until: int
    held: bool
    backend: int | None
    usename: str | None
    address: str | None
    client_port: int | None
    since: int | None


async def holders(url: str) -> list[Holder]:
    """Of a database with the tables of this code. Raises what the driver raises."""
    async with _connection(url) as connection:
        return [Holder(**row) for row in await connection.fetch(_HOLDERS, LEASE_CONNECTION)]


async def pooled(url: str) -> str:
    """Why a pooler in transaction mode must stand before the database; empty when nothing shows one.

    Each connection has a server process of its own, unless somebody in between shares them out.
    """
    try:
        async with _connection(url) as first, _connection(url) as second:
            seen: tuple[set[int], set[int]] = (set(), set())
            for _ in range(ASKED):
                for connection, pids in zip((first, second), seen, strict=True):
                    pids.add(await connection.fetchval("SELECT pg_backend_pid()"))
    except asyncpg.PostgresError as problem:
        if shares(problem):
            return "a statement that was prepared was gone"
        raise
    if any(len(pids) > 1 for pids in seen):
        return "one connection was answered by several processes of the server"
    if seen[0] & seen[1]:
        return "two connections were answered by one process of the server"
    return ""


def shares(problem: BaseException) -> bool:
    """Whether a failure comes from a pooler that gives the statements of one connection to several processes."""
    return getattr(problem, "sqlstate", None) in _POOLED


def refuses_settings(problem: BaseException) -> bool:
    """Whether it is a pooler's, which takes no settings with a connection."""
    return "unsupported startup parameter" in str(problem)


async def lost_settings(url: str) -> list[str]:
    """Which of TIMEOUTS do not stand on a connection although it was opened with them."""
    async with _connection(url) as connection:
        found = await connection.fetch("SELECT name, setting FROM pg_settings WHERE name = ANY($1)", TIMEOUTS)
    return sorted(row["name"] for row in found if row["setting"] != SESSION[row["name"]])


@contextlib.asynccontextmanager
async def _connection(url: str) -> AsyncIterator[Any]:
    """As the service's own, but without named statements, which a pooler would mix up."""
    connection = await asyncpg.connect(url, timeout=CONNECT_TIMEOUT_S, server_settings=SESSION, statement_cache_size=0)
    try:
        yield connection
    finally:
        with contextlib.suppress(Exception):  # it has answered; how it goes is no matter
            await connection.close(timeout=CLOSE_WITHIN_S)
