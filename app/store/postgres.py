"""PostgreSQL: writers with a connection each, a small pool of connections that read. Opened by the loop that uses it.

A step runs on its writer's connection, one transaction a step, beside those of other writers; what orders them are
the locks that they take. Before its COMMIT a step that wrote leaves a mark under its writer's name. When the answer
to a COMMIT is lost, the mark tells whether it was committed (rule G4), so no step needs to recognise itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg  # type: ignore[import-untyped]
import structlog
from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool

from app.clock import Clock
from app.domain.wellformed import storable
from app.errors import StoreBusy, StoreUnusable
from app.store.contract import READ_PATIENCE_S, StepUnsettled, StoreClosed, StoreStats

T = TypeVar("T")

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

RETRY_PAUSE_S_MAX = 1.0
READS_WAITING_MAX = 1024
STATEMENTS_CACHED = 512
MARKS_KEPT = "30 days"

_FATAL = ("28", "3D", "42501", "42703", "42P01")
"""SQLSTATE of what no waiting mends: not let in, no such database, no right, another schema."""

_PASSING = ("08", "25", "40", "53", "55", "57", "58")
"""Of what may pass: connection, failed or read-only transaction, conflict, resources, lock, shutdown, system."""

READ_ONLY = "25006"
"""To a step: the server is a replica for now. To a query: it tried to write."""

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

log = structlog.get_logger("laneway.store")


@dataclass(slots=True, eq=False)
class _Job:
    """A step on its way. `running`: it is in a transaction whose outcome is not known yet."""

    step: Callable[[Connection], Any]
    then: Callable[[Any], None] | None
    future: asyncio.Future[Any]
    running: bool = False
    dropped: bool = False


class _CommitUnknown(Exception):
    """The COMMIT was sent and not answered. `value` is what the step returned, if it was committed."""

    def __init__(self, value: Any) -> None:
        super().__init__("the answer to a COMMIT was lost")
        self.value = value


class PostgresStore:
    """The store in a PostgreSQL database. `connections` write, and as many read."""

    shared = True

    def __init__(self, url: str, clock: Clock, *, connections: int, queue_steps_max: int) -> None:
        self._url = url
        self._steady_s = clock.steady_s
        self._name = str(uuid.uuid4())
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Job] = deque()
        self._queue_steps_max = queue_steps_max
        self._waiting = 0
        self._idle: deque[asyncio.Future[None]] = deque()
        self._closing = False
        self._hopeless = asyncio.Event()
        self._pool_size = connections
        self._reads = 0
        self._reading = asyncio.Semaphore(connections)
        self._read_engine = _read_engine(url, connections)
        self.failed: asyncio.Future[StoreUnusable] = self._loop.create_future()
        self._writers = [
            self._loop.create_task(self._write_until_closed(f"{self._name}/{number}"), name=f"laneway write {number}")
            for number in range(connections)
        ]

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
            job.dropped = not job.running
            self._waiting -= job.dropped
            raise StepUnsettled(begun=job.running) from None

    def submit(self, step: Callable[[Connection], T], then: Callable[[T], None] | None = None) -> asyncio.Future[T]:
        return self._enqueue(step, then).future

    def _enqueue(self, step: Callable[[Connection], T], then: Callable[[T], None] | None) -> _Job:
        if self._closing:
            raise StoreClosed
        job = _Job(step, then, self._loop.create_future())
        self._waiting += 1
        self._queue.append(job)
        self._wake_one()
        return job

    async def read(self, query: Callable[[Connection], T], *, patience_s: float | None = READ_PATIENCE_S) -> T:
        if self._reads >= READS_WAITING_MAX:
            raise StoreBusy("Too many reads are waiting for the store; ask again.")
        self._reads += 1
        reading = self._loop.create_task(self._read(query, patience_s), name="laneway read")
        reading.add_done_callback(self._read_done)
        return await asyncio.shield(reading)

    def stats(self) -> StoreStats:
        return StoreStats(self._waiting, self._reads, self._pool_size, None)

    def give_up(self) -> None:
        self._hopeless.set()
        if self._waiting:
            self._report("could not be written to the end; the log says why")

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._hopeless.set()
        while self._idle:
            self._wake_one()
        await asyncio.gather(*self._writers)
        await self._read_engine.dispose()

    # Reading.

    async def _read(self, query: Callable[[Connection], T], patience_s: float | None) -> T:
        until_s = None if patience_s is None else self._steady_s() + patience_s
        pause_s = 0.02
        while True:
            try:
                async with self._reading, self._read_engine.connect() as connection:
                    return await connection.run_sync(query)
            except Exception as problem:
                if not _passes(problem) or _state(problem) == READ_ONLY:
                    raise
                if self._hopeless.is_set() or (until_s is not None and self._steady_s() >= until_s):
                    raise StoreBusy("The database does not answer; ask again.") from problem
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hopeless.wait(), pause_s)
            pause_s = min(RETRY_PAUSE_S_MAX, pause_s * 2)

    def _read_done(self, reading: asyncio.Future[Any]) -> None:
        self._reads -= 1
        if not reading.cancelled():
            reading.exception()

    # Writing.

    def _wake_one(self) -> None:
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _next(self) -> _Job | None:
        """The longest waiting step; None when the store closes and nothing is left."""
        while True:
            while self._queue:
                job = self._queue.popleft()
                if not job.dropped:
                    return job
            if self._closing:
                return None
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            await waiter

    async def _write_until_closed(self, name: str) -> None:
        writer = _Writer(self._url, name)
        try:
            while (job := await self._next()) is not None:
                await self._run(writer, job)
        except BaseException as problem:
            log.exception("store.writer-failed")
            self._report(f"cannot be used any more: {type(problem).__name__}")
        finally:
            await writer.close()

    async def _run(self, writer: _Writer, job: _Job) -> None:
        """Until it is committed or refused, or the store closes. Answers the job."""
        pause_s = 0.02
        while not job.dropped:
            try:
                await writer.connect()
                if job.dropped:
                    return
                job.running = True
                value = await writer.transact(job.step)
            except _CommitUnknown as unknown:
                if await self._was_committed(writer):
                    self._done(job, unknown.value)
                    return
                problem: BaseException = unknown
            except Exception as refusal:
                if not _passes(refusal):
                    self._refuse(job, refusal)
                    return
                problem = refusal
            else:
                self._done(job, value)
                return
            job.running = False
            if self._hopeless.is_set():
                self._fail(job, StoreClosed(_line(problem)))
                return
            log.warning("store.retry", problem=_line(problem), pause_s=pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hopeless.wait(), pause_s)
            pause_s = min(RETRY_PAUSE_S_MAX, pause_s * 2)

    async def _was_committed(self, writer: _Writer) -> bool:
        """Ask until the database answers. False also when the store closes meanwhile: nobody can tell then."""
        pause_s = 0.02
        while True:
            try:
                return await writer.was_committed()
            except Exception as problem:
                if self._hopeless.is_set():
                    return False
                log.warning("store.commit-unknown", problem=_line(problem), pause_s=pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hopeless.wait(), pause_s)
            pause_s = min(RETRY_PAUSE_S_MAX, pause_s * 2)

    def _done(self, job: _Job, value: Any) -> None:
        self._waiting -= 1
        if job.then is not None:
            try:
                job.then(value)
            except Exception as problem:
                log.exception("store.then-failed")
                self._answer(job, problem)
                return
        if not job.future.done():
            job.future.set_result(value)

    def _refuse(self, job: _Job, refusal: Exception) -> None:
        if isinstance(refusal, IntegrityError) or not isinstance(refusal, DBAPIError | asyncpg.PostgresError):
            self._fail(job, refusal)
            return
        if _state(refusal).startswith(_FATAL):
            self._report(f"cannot be used any more: {_line(refusal)}")
            self._fail(job, StoreClosed(_line(refusal)))
            return
        log.error("store.refused", problem=_line(refusal))
        self._fail(job, refusal)

    def _fail(self, job: _Job, problem: BaseException) -> None:
        self._waiting -= 1
        self._answer(job, problem)

    @staticmethod
    def _answer(job: _Job, problem: BaseException) -> None:
        if not job.future.done():
            job.future.set_exception(problem)
            job.future.exception()  # a caller that left has seen it

    def _report(self, why: str) -> None:
        if not self.failed.done():
            self.failed.set_result(StoreUnusable(f"The database {why}."))


class _Writer:
    """One connection that writes, opened when first needed and again when it is lost."""

    def __init__(self, url: str, name: str) -> None:
        self._name = name
        self._engine = engine(url)
        self._connection: AsyncConnection | None = None
        self._token = ""

    async def transact(self, step: Callable[[Connection], T]) -> T:
        """Run a step and commit it. Raises what the step raises, then nothing is stored; or _CommitUnknown."""
        connection = await self.connect()
        self._token = str(uuid.uuid4())
        try:
            return await connection.run_sync(self._transact, step)
        except _CommitUnknown:
            await self._drop()
            raise
        except Exception as problem:
            if _passes(problem):
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
            raise _CommitUnknown(value) from problem
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


def _read_engine(url: str, size: int) -> AsyncEngine:
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


def _state(problem: BaseException) -> str:
    """SQLSTATE, empty when the server said none."""
    return str(getattr(getattr(problem, "orig", problem), "sqlstate", None) or "")


def _passes(problem: BaseException) -> bool:
    """Whether trying again may help: the connection is gone, or the server said so."""
    if isinstance(problem, DBAPIError):
        state = _state(problem)
        return problem.connection_invalidated or state.startswith(_PASSING)
    if isinstance(problem, asyncpg.PostgresError):
        return _state(problem).startswith(_PASSING)
    return isinstance(problem, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError)


def _line(problem: BaseException) -> str:
    """The failure in a line, without statements and values."""
    cause = getattr(problem, "orig", None) or problem.__cause__ or problem
    return f"{type(cause).__name__}: {cause}".splitlines()[0][:300]
