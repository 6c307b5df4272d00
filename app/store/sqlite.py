"""SQLite: one writer thread with group commit, a small pool of reader threads.

Steps that queued while the last COMMIT was under way form the next group; nothing waits for company. Each step of
a group stands in a savepoint, so a refusal undoes that step alone. After any database error the whole group is
rolled back and its steps are tried one by one: a full disk ends a transaction silently, and what follows would
commit piece by piece.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.pool import NullPool

from app.clock import Clock
from app.errors import StoreBusy, StoreUnusable
from app.store.contract import READ_PATIENCE_S, StepUnsettled, StoreClosed, StoreStats

T = TypeVar("T")

GROUP_STEPS_MAX = 64
GROUP_WORK_S_MAX = 0.005
BUSY_TIMEOUT_MS = 250
RETRY_PAUSE_S_MAX = 1.0
IDLE_CHECKPOINT_S = 1.0
WAL_AUTOCHECKPOINT_PAGES = 4000
READS_WAITING_MAX = 1024
WRITER_CACHE_KIB = 4096
READER_CACHE_KIB = 1024
"""Of pages, by connection. The system's own cache has the whole file; a larger one here only costs memory."""

_FATAL = ("malformed", "not a database", "readonly", "no such table", "no such column")

log = structlog.get_logger("laneway.store")


@dataclass(slots=True)
class _Job:
    """A step on its way. `begun` and `dropped` are set under the lock: a step is run or given up, never both."""

    step: Callable[[Connection], Any]
    then: Callable[[Any], None] | None
    future: asyncio.Future[Any]
    lock: threading.Lock = field(default_factory=threading.Lock)
    begun: bool = False
    dropped: bool = False
    value: Any = None
    error: BaseException | None = None

    def begin(self) -> bool:
        with self.lock:
            self.begun = not self.dropped
            return self.begun

    def drop(self) -> bool:
        """Give it up. False when it had begun."""
        with self.lock:
            self.dropped = not self.begun
            return self.dropped


class _GroupFailed(Exception):
    """The transaction of a group broke; nothing of it is stored."""


class SqliteStore:
    """The store of one process in one file."""

    shared = False

    def __init__(self, path: Path, clock: Clock, *, synchronous: str, readers: int, queue_steps_max: int) -> None:
        self._path = path
        self._steady_s = clock.steady_s
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._queue_steps_max = queue_steps_max
        self._waiting = 0
        self._closing = threading.Event()
        self._hopeless = threading.Event()
        self._pool_size = readers
        self._reads = 0
        self._engine = sqlite_engine(path, synchronous=synchronous)
        self._connection = self._engine.connect()
        self._local = threading.local()
        self._read_connections: list[Connection] = []
        self._readers = ThreadPoolExecutor(readers, thread_name_prefix="laneway-read")
        self.failed: asyncio.Future[StoreUnusable] = self._loop.create_future()
        self._writer = threading.Thread(target=self._write_until_closed, name="laneway-write", daemon=True)
        self._writer.start()

    async def write(
        self,
        step: Callable[[Connection], T],
        then: Callable[[T], None] | None = None,
        *,
        patience_s: float | None = None,
    ) -> T:
        if patience_s is None:
            return await asyncio.shield(self.submit(step, then))
        if self._waiting >= self._queue_steps_max:
            raise StepUnsettled(begun=False)
        job = self._enqueue(step, then)
        try:
            async with asyncio.timeout(patience_s):
                value: T = await asyncio.shield(job.future)
                return value
        except TimeoutError:
            dropped = job.drop()
            self._waiting -= dropped
            raise StepUnsettled(begun=not dropped) from None

    def submit(self, step: Callable[[Connection], T], then: Callable[[T], None] | None = None) -> asyncio.Future[T]:
        return self._enqueue(step, then).future

    def _enqueue(self, step: Callable[[Connection], T], then: Callable[[T], None] | None) -> _Job:
        if self._closing.is_set():
            raise StoreClosed
        job = _Job(step, then, self._loop.create_future())
        self._waiting += 1
        self._queue.put(job)
        return job

    async def read(self, query: Callable[[Connection], T], *, patience_s: float | None = READ_PATIENCE_S) -> T:
        """As the contract says; a file is never away, so `patience_s` waits for nothing."""
        if self._reads >= READS_WAITING_MAX:
            raise StoreBusy("Too many reads are waiting for the store; ask again.")
        self._reads += 1
        future = self._loop.run_in_executor(self._readers, self._read_one, query)
        future.add_done_callback(self._read_done)
        return await asyncio.shield(future)

    def stats(self) -> StoreStats:
        wal = self._path.with_name(self._path.name + "-wal")
        try:
            wal_bytes = wal.stat().st_size
        except FileNotFoundError:
            wal_bytes = 0
        return StoreStats(self._waiting, self._reads, self._pool_size, wal_bytes)

    def give_up(self) -> None:
        self._hopeless.set()
        if self._waiting:
            self._report(StoreUnusable(f"The database {self._path} could not be written to the end; the log says why."))

    async def close(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        self._hopeless.set()
        self._queue.put(None)
        await asyncio.to_thread(self._writer.join)
        await asyncio.to_thread(self._readers.shutdown)
        for connection in self._read_connections:
            connection.close()
        self._engine.dispose()

    def _read_done(self, future: asyncio.Future[Any]) -> None:
        self._reads -= 1
        if not future.cancelled():
            future.exception()

    def _read_one(self, query: Callable[[Connection], T]) -> T:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._engine.connect()
            _raw(connection).execute("PRAGMA query_only = ON")
            _raw(connection).execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
            self._local.connection = connection
            self._read_connections.append(connection)
        raw = _raw(connection)
        raw.execute("BEGIN")
        try:
            return query(connection)
        finally:
            raw.rollback()

    # The writer thread.

    def _write_until_closed(self) -> None:
        connection = self._connection
        try:
            while (group := self._next_group(connection)) is not None:
                self._run_group(connection, group)
        except BaseException as problem:
            log.exception("store.writer-failed")
            self._give_up(str(problem))
        finally:
            with contextlib.suppress(sqlite3.Error):
                _raw(connection).execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()

    def _next_group(self, connection: Connection) -> list[_Job] | None:
        try:
            first = self._queue.get(timeout=IDLE_CHECKPOINT_S)
        except queue.Empty:
            with contextlib.suppress(sqlite3.Error):
                _raw(connection).execute("PRAGMA wal_checkpoint(PASSIVE)")
            first = self._queue.get()
        group: list[_Job] = []
        while first is not None:
            group.append(first)
            if len(group) == GROUP_STEPS_MAX:
                return group
            try:
                first = self._queue.get_nowait()
            except queue.Empty:
                return group
        # The end was called: finish what is in hand, then stop at the next call.
        if group:
            self._queue.put(None)
        return group or None

    def _run_group(self, connection: Connection, group: list[_Job]) -> None:
        """Run what has not been given up, in order; answer each job after its own COMMIT."""
        jobs = list(group)
        while jobs:
            try:
                done = self._transact(connection, jobs)
            except _GroupFailed:
                self._run_alone(connection, jobs[0])
                done = 1
            self._settle(jobs[:done])
            del jobs[:done]

    def _run_alone(self, connection: Connection, job: _Job) -> None:
        pause_s = 0.02
        while True:
            try:
                self._transact(connection, [job])
                return
            except _GroupFailed as failure:
                problem = failure.__cause__
                if self._fatal(problem) or self._closing.is_set() or self._hopeless.is_set():
                    job.error = StoreClosed(str(problem))
                    return
                log.warning("store.retry", problem=str(getattr(problem, "orig", problem)), pause_s=pause_s)
                self._hopeless.wait(pause_s)
                pause_s = min(RETRY_PAUSE_S_MAX, pause_s * 2)

    def _fatal(self, problem: BaseException | None) -> bool:
        text = str(getattr(problem, "orig", problem))
        if not any(mark in text for mark in _FATAL):
            return False
        self._give_up(text)
        return True

    def _give_up(self, why: str) -> None:
        error = StoreUnusable(f"The database {self._path} cannot be used any more: {why}.")
        self._loop.call_soon_threadsafe(self._report, error)

    def _report(self, error: StoreUnusable) -> None:
        if not self.failed.done():
            self.failed.set_result(error)

    def _transact(self, connection: Connection, jobs: list[_Job]) -> int:
        """One transaction over as many of `jobs` as fit the bound of work; returns how many. Raises _GroupFailed."""
        raw = _raw(connection)
        done = 0
        try:
            raw.execute("BEGIN IMMEDIATE")
            deadline = self._steady_s() + GROUP_WORK_S_MAX
            for job in jobs:
                if job.begin():
                    _run_step(connection, raw, job)
                done += 1
                if self._steady_s() > deadline:
                    break
            _commit(raw)
        except (sqlite3.Error, DBAPIError) as problem:
            if raw.in_transaction:
                raw.rollback()
            raise _GroupFailed from problem
        return done

    def _settle(self, group: list[_Job]) -> None:
        jobs = [job for job in group if not job.dropped]
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits any more
            self._loop.call_soon_threadsafe(self._answer, jobs)

    def _answer(self, jobs: list[_Job]) -> None:
        self._waiting -= len(jobs)
        for job in jobs:
            if job.error is None and job.then is not None:
                try:
                    job.then(job.value)
                except Exception as problem:
                    log.exception("store.then-failed")
                    job.error = problem
            if job.future.done():
                continue
            if job.error is None:
                job.future.set_result(job.value)
            else:
                job.future.set_exception(job.error)
                job.future.exception()  # a caller that left has seen it


def _run_step(connection: Connection, raw: sqlite3.Connection, job: _Job) -> None:
    job.value, job.error = None, None
    raw.execute("SAVEPOINT step")
    try:
        job.value = job.step(connection)
    except IntegrityError as problem:
        if not raw.in_transaction:
            raise
        raw.execute("ROLLBACK TO step")
        job.error = problem
    except (sqlite3.Error, DBAPIError):
        raise
    except Exception as refusal:
        if not raw.in_transaction:
            raise sqlite3.OperationalError("the transaction ended inside a step") from refusal
        raw.execute("ROLLBACK TO step")
        job.error = refusal
    raw.execute("RELEASE step")


def _commit(raw: sqlite3.Connection) -> None:
    while True:
        try:
            raw.execute("COMMIT")
            return
        except sqlite3.OperationalError as problem:
            if not raw.in_transaction or getattr(problem, "sqlite_errorcode", 0) != sqlite3.SQLITE_BUSY:
                raise


def _raw(connection: Connection) -> sqlite3.Connection:
    return connection.connection.driver_connection  # type: ignore[return-value]


def sqlite_engine(path: Path, *, synchronous: str) -> Engine:
    """An engine whose connections never begin or end a transaction by themselves."""
    engine = create_engine(
        f"sqlite+pysqlite:///{path}",
        isolation_level="AUTOCOMMIT",
        poolclass=NullPool,
        connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_MS / 1000, "cached_statements": 512},
    )
    event.listen(engine, "connect", partial(_prepare, synchronous))
    return engine


def _prepare(synchronous: str, raw: sqlite3.Connection, _record: object) -> None:
    raw.execute("PRAGMA foreign_keys = ON")
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute(f"PRAGMA synchronous = {synchronous.upper()}")
    raw.execute(f"PRAGMA wal_autocheckpoint = {WAL_AUTOCHECKPOINT_PAGES}")
    raw.execute("PRAGMA temp_store = MEMORY")
    raw.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
