"""The lease of a worker in a shared database, renewed by a thread of its own, whatever the event loop does.

A worker that could not renew for DOUBT_S must assume that another one begins when its lease is over; one that finds
itself declared dead is over at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import structlog

from app.store.postgres_connection import connector
from app.store.postgres_outside import LEASE_CONNECTION
from app.store.transaction.worker import LEASE_MS

PERIOD_S = LEASE_MS / 4000
DOUBT_S = 5.5
RENEW_WITHIN_S = 1.5
AGAIN_AFTER_S = 0.25

_RENEW = (
    "UPDATE worker SET lease_until = CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT) + $2 "
    "WHERE id = $1 AND dead_at IS NULL"
)

log = structlog.get_logger("laneway.lease")


def _steady_s() -> float:
    """Goes on while the machine sleeps, as the lease does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class DatabaseLease:
    """Kept from `start` to `stop`. `lost` and `doubtful` are called on the loop that started it."""

    def __init__(self, url: str, worker_id: str, *, lost: Callable[[], None], doubtful: Callable[[], None]) -> None:
        self._connect = connector(url)
        self._worker_id = worker_id
        self._lost = lost
        self._doubtful = doubtful
        self._owner: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._connection: Any = None

    def start(self) -> None:
        self._owner = asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(self._loop,), name="laneway-lease", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        with contextlib.suppress(RuntimeError):  # the lease was lost, so the thread has ended by itself
            self._loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.to_thread(self._thread.join)
        self._thread = None

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_until_complete(self._keep())
        finally:
            loop.close()

    async def _keep(self) -> None:
        assert self._stopping is not None
        renewed_s = _steady_s()
        while not self._stopping.is_set():
            asked_s = _steady_s()
            mine = await self._renew()
            if mine:
                renewed_s = asked_s
            elif mine is False:
                self._tell(self._lost)
                break
            elif _steady_s() - renewed_s > DOUBT_S:
                self._tell(self._doubtful)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), PERIOD_S if mine else AGAIN_AFTER_S)
        await self._drop()

    async def _renew(self) -> bool | None:
        """True: for another LEASE_MS. False: declared dead. None: the database did not say."""
        try:
            async with asyncio.timeout(RENEW_WITHIN_S):
                if self._connection is None:
                    self._connection = await self._connect()
                    await self._connection.execute(f"SET application_name = '{LEASE_CONNECTION}{self._worker_id}'")
                done: str = await self._connection.execute(_RENEW, self._worker_id, LEASE_MS)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as problem:
            log.warning("lease.not-renewed", problem=type(problem).__name__)
            await self._drop()
            return None
        return done == "UPDATE 1"

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    def _tell(self, what: Callable[[], None]) -> None:
        assert self._owner is not None
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody executes any more
            self._owner.call_soon_threadsafe(what)
