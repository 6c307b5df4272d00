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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg  # type: ignore[import-untyped]
import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError

from app.clock import Clock
from app.errors import StoreBusy, StoreUnusable
from app.store.contract import READ_PATIENCE_S, StepUnsettled, StoreClosed, StoreStats
from app.store.postgres_connection import FATAL, READ_ONLY, line, passes, read_engine, sqlstate
from app.store.postgres_writer import CommitUnknown, Writer

T = TypeVar("T")

RETRY_PAUSE_S_MAX = 1.0
READS_WAITING_MAX = 1024

log = structlog.get_logger("laneway.store")


@dataclass(slots=True, eq=False)
class _Job:
    """A step on its way. `running`: it is in a transaction whose outcome is not known yet."""

    step: Callable[[Connection], Any]
    then: Callable[[Any], None] | None
    future: asyncio.Future[Any]
    running: bool = False
    dropped: bool = False


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
        self._read_engine = read_engine(url, connections)
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
                if not passes(problem) or sqlstate(problem) == READ_ONLY:
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
        writer = Writer(self._url, name)
        try:
            while (job := await self._next()) is not None:
                await self._run(writer, job)
        except BaseException as problem:
            log.exception("store.writer-failed")
            self._report(f"cannot be used any more: {type(problem).__name__}")
        finally:
            await writer.close()

    async def _run(self, writer: Writer, job: _Job) -> None:
        """Until it is committed or refused, or the store closes. Answers the job."""
        pause_s = 0.02
        while not job.dropped:
            try:
                await writer.connect()
                if job.dropped:
                    return
                job.running = True
                value = await writer.transact(job.step)
            except CommitUnknown as unknown:
                if await self._was_committed(writer):
                    self._done(job, unknown.value)
                    return
                problem: BaseException = unknown
            except Exception as refusal:
                if not passes(refusal):
                    self._refuse(job, refusal)
                    return
                problem = refusal
            else:
                self._done(job, value)
                return
            job.running = False
            if self._hopeless.is_set():
                self._fail(job, StoreClosed(line(problem)))
                return
            log.warning("store.retry", problem=line(problem), pause_s=pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hopeless.wait(), pause_s)
            pause_s = min(RETRY_PAUSE_S_MAX, pause_s * 2)

    async def _was_committed(self, writer: Writer) -> bool:
        """Ask until the database answers. False also when the store closes meanwhile: nobody can tell then."""
        pause_s = 0.02
        while True:
            try:
                return await writer.was_committed()
            except Exception as problem:
                if self._hopeless.is_set():
                    return False
                log.warning("store.commit-unknown", problem=line(problem), pause_s=pause_s)
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
        if sqlstate(refusal).startswith(FATAL):
            self._report(f"cannot be used any more: {line(refusal)}")
            self._fail(job, StoreClosed(line(refusal)))
            return
        log.error("store.refused", problem=line(refusal))
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
