"""One connection that writes: a step, its mark and its COMMIT, and afterwards whether it was committed."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.postgres_connection import engine, passes

T = TypeVar("T")

MARKS_KEPT = "30 days"

_MARK = (
    "INSERT INTO step_mark (id, token, marked_at) SELECT $1, $2, now() "
    "WHERE pg_current_xact_id_if_assigned() IS NOT NULL "
    "ON CONFLICT (id) DO UPDATE SET token = excluded.token, marked_at = excluded.marked_at"
)
# The insert waits for a rival one that is not decided yet, the lock for a rival update.
_SETTLE_MARK = "INSERT INTO step_mark (id, token, marked_at) VALUES ($1, '', now()) ON CONFLICT (id) DO NOTHING"
_READ_MARK = "SELECT token FROM step_mark WHERE id = $1 FOR UPDATE"
_FORGET_MARKS = f"DELETE FROM step_mark WHERE marked_at < now() - interval '{MARKS_KEPT}'"  # noqa: S608 - a constant
_DROP_MARK = "DELETE FROM step_mark WHERE id = $1"


class CommitUnknown(Exception):
    """The COMMIT was sent and not answered. `value` is what the step returned, if it was committed."""

    def __init__(self, value: Any) -> None:
        super().__init__("the answer to a COMMIT was lost")
        self.value = value


class Writer:
    """One connection that writes, opened when first needed and again when it is lost."""

    def __init__(self, url: str, name: str) -> None:
        self._name = name
        self._engine = engine(url)
        self._connection: AsyncConnection | None = None
        self._token = ""

    async def transact(self, step: Callable[[Connection], T]) -> T:
        """Run a step and commit it. Raises what the step raises, then nothing is stored; or CommitUnknown."""
        connection = await self.connect()
        self._token = str(uuid.uuid4())
        try:
            return await connection.run_sync(self._transact, step)
        except CommitUnknown:
            await self._drop()
            raise
        except Exception as problem:
            if passes(problem):
                await self._drop()
            raise

    async def was_committed(self) -> bool:
        """Whether the last step is in the database. Waits for a transaction of ours that is still undecided."""
        connection = await self.connect()
        try:
            return await connection.run_sync(self._find_mark)
        except Exception:
            await self._drop()
            raise

    async def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):  # the mark of a writer that is gone is forgotten later
                await self._connection.run_sync(self._drop_mark)
        await self._drop()
        await self._engine.dispose()

    async def connect(self) -> AsyncConnection:
        """The connection, opened when there is none. Raises what the driver raises."""
        if self._connection is None:
            self._connection = await self._engine.connect()
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it is lost: nothing can be done for it any more
                await connection.invalidate()
            with contextlib.suppress(Exception):
                await connection.close()

    def _transact(self, conn: Connection, step: Callable[[Connection], T]) -> T:
        try:
            value = step(conn)
            conn.exec_driver_sql(_MARK, (self._name, self._token))
        except BaseException:
            conn.rollback()
            raise
        try:
            conn.commit()
        except Exception as problem:
            raise CommitUnknown(value) from problem
        return value

    def _find_mark(self, conn: Connection) -> bool:
        conn.exec_driver_sql(_SETTLE_MARK, (self._name,))
        found = bool(conn.exec_driver_sql(_READ_MARK, (self._name,)).scalar_one() == self._token)
        conn.commit()
        return found

    def _drop_mark(self, conn: Connection) -> None:
        conn.exec_driver_sql(_DROP_MARK, (self._name,))
        conn.exec_driver_sql(_FORGET_MARKS)
        conn.commit()
