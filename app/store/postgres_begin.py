"""Before a PostgreSQL database is used: what the server must be like, and bringing it to the schema of this code."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import structlog
from alembic import command
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from app.errors import StoreUnusable
from app.settings.database import shown
from app.store.migrate import alembic_config, missing_revisions
from app.store.postgres_connection import connector, engine

OLDEST_VERSION = 13
BEGIN_WITHIN_S = 15.0
AGAIN_AFTER_S = 0.5
CLOSE_WITHIN_S = 2
MIGRATION_LOCK = 0x6C616E65776179
"""Two that migrate at once: the second waits, then finds nothing to do."""

_NOT_UP = ("57P03", "53300")
"""SQLSTATE of a server that starts, or has no connection left for us."""

log = structlog.get_logger("laneway.store")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself. `revision` is None for a database without our tables."""

    version: int
    encoding: str
    synchronous_commit: str
    fsync: str
    replica: bool
    revision: str | None


async def look(url: str) -> ServerFacts:
    """Connect once and ask. Raises what the driver raises."""
    connection = await connector(url)()
    try:
        revision = None
        if await connection.fetchval("SELECT to_regclass('alembic_version')") is not None:
            revision = await connection.fetchval("SELECT version_num FROM alembic_version")
        return ServerFacts(
            version=int(await connection.fetchval("SHOW server_version_num")) // 10_000,
            encoding=await connection.fetchval("SHOW server_encoding"),
            synchronous_commit=await connection.fetchval("SHOW synchronous_commit"),
            fsync=await connection.fetchval("SHOW fsync"),
            replica=await connection.fetchval("SELECT pg_is_in_recovery()"),
            revision=revision,
        )
    finally:
        with contextlib.suppress(Exception):  # it has answered; how it goes is no matter
            await connection.close(timeout=CLOSE_WITHIN_S)


def faults(facts: ServerFacts) -> list[str]:
    """Why this server cannot keep what it has promised; a sentence each, empty when it can."""
    found: list[str] = []
    if facts.version < OLDEST_VERSION:
        found.append(f"it is PostgreSQL {facts.version}; at least {OLDEST_VERSION} is needed")
    if facts.encoding != "UTF8":
        found.append(f"its encoding is {facts.encoding}; make a database with ENCODING 'UTF8'")
    if facts.synchronous_commit == "off":
        found.append("synchronous_commit is off, so what it has answered may be lost; set it to on")
    if facts.replica:
        found.append("it is a replica, which cannot be written; give the address of the primary")
    return found


def open_database(url: str, *, migrate: bool) -> list[str]:
    """Check the server and the schema before the service begins; with `migrate`, bring the schema up.

    Returns the revisions applied. Raises StoreUnusable in one line that never holds the password.
    """
    facts = asyncio.run(_reach(url))
    found = faults(facts)
    if found:
        raise StoreUnusable(f"The database {shown(url)} cannot be used: {'; '.join(found)}.")
    if facts.fsync == "off":
        log.warning("store.fsync-off", hint="a crash of the server may lose or break everything")
    missing = missing_revisions(facts.revision, shown(url))
    if not missing:
        return []
    if not migrate:
        at = f"at revision {facts.revision}" if facts.revision else "empty"
        raise StoreUnusable(
            f"The database {shown(url)} is {at}, this code needs {missing[-1]}: run `laneway migrate`, "
            "or start with `laneway serve --migrate`."
        )
    return asyncio.run(_migrate(url))


async def _reach(url: str) -> ServerFacts:
    """Wait a moment for a server that is just starting."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + BEGIN_WITHIN_S
    while True:
        try:
            return await look(url)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as problem:
            starting = isinstance(problem, OSError) or getattr(problem, "sqlstate", None) in _NOT_UP
            if not starting or loop.time() >= until_s:
                raise StoreUnusable(f"The database {shown(url)} cannot be used: {_said(problem)}.") from None
            log.info("start.waits-for-database", problem=type(problem).__name__)
        await asyncio.sleep(AGAIN_AFTER_S)  # a server that starts tells nobody when it is ready


def _said(problem: BaseException) -> str:
    if isinstance(problem, TimeoutError):
        return "no answer in time"
    text = (str(problem) or type(problem).__name__).splitlines()[0]
    return text.rstrip(".")


async def _migrate(url: str) -> list[str]:
    made = engine(url)
    try:
        async with made.begin() as connection:
            return await _upgrade(connection, url)
    except (OSError, asyncpg.PostgresError) as problem:
        raise StoreUnusable(f"The database {shown(url)} cannot be migrated: {_said(problem)}.") from None
    except StoreUnusable:
        raise
    except Exception as problem:
        cause = getattr(problem, "orig", None) or problem
        raise StoreUnusable(f"The database {shown(url)} cannot be migrated: {_said(cause)}.") from None
    finally:
        await made.dispose()


async def _upgrade(connection: AsyncConnection, url: str) -> list[str]:
    """All revisions in one transaction: whole or not at all."""
    await connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    await connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
    await connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
    await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
    made = (await connection.exec_driver_sql("SELECT to_regclass('alembic_version')")).scalar()
    at = None
    if made is not None:
        at = (await connection.exec_driver_sql("SELECT version_num FROM alembic_version")).scalar()
    missing = missing_revisions(at, shown(url))
    if missing:
        await connection.run_sync(run_alembic, command.upgrade, "head")
    return missing


def run_alembic(connection: Connection, action: Any, target: str) -> None:
    """Run an Alembic command (`command.upgrade`, `command.downgrade`) on an open connection."""
    config = alembic_config("postgresql://")
    config.attributes["connection"] = connection
    action(config, target)
