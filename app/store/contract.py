"""The seam to the database: transactions that write, and reads. Two engines: `sqlite` and `postgres`.

A step is a plain function on a synchronous SQLAlchemy Connection, one transaction whole or not at all. It takes
what it needs as arguments, decides on what it reads, and returns a value. It may raise any exception to refuse:
then nothing of it is stored and the caller gets that exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sqlalchemy import Connection

from app.errors import StoreUnusable

T = TypeVar("T")

Step = Callable[[Connection], T]

READ_PATIENCE_S = 5.0
"""How long a reader waits for a database that is away."""


class Fenced(Exception):
    """The attempt that writes is no longer the one that may (rule G2). Nothing of the step was stored."""


class ClaimLost(Exception):
    """The attempt may still write events, but the transcript is no longer its own (rule G3)."""


class AbortRequested(Exception):
    """An abort of the run was committed before this step, so the step may not begin anything new."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What the store is doing now, for metrics and diagnostics."""

    queued_steps: int
    active_reads: int
    pool_size: int
    wal_bytes: int | None
    """None where the log is the server's business."""


class Store(Protocol):
    """Runs steps and reads. Safe to call from any task of the loop that opened it."""

    failed: asyncio.Future[StoreUnusable]
    """Done when the database cannot be used any more; the process should end with that one line."""

    shared: bool
    """Whether another process may use the same database, so that who executes holds a lease."""

    async def write(
        self,
        step: Step[T],
        then: Callable[[T], None] | None = None,
        *,
        patience_s: float | None = None,
    ) -> T:
        """Run a step and return its value after its COMMIT.

        `then(value)` runs on the event loop right after the COMMIT, before the caller goes on, and also when the
        caller was cancelled meanwhile (rule G5): waking, telling and answering belong there. A cancelled caller
        does not stop a step that has been handed over.

        With `patience_s` the step is given up after that time (StepUnsettled), or at once when the store's queue is
        full. Without, it is tried until it holds or the store closes (StoreClosed).
        """
        ...

    def submit(self, step: Step[T], then: Callable[[T], None] | None = None) -> asyncio.Future[T]:
        """Hand a step over and get its outcome as a future, for a caller that must outlast its own cancellation.

        Steps may be committed in another order than they were submitted in: who needs one waits. Raises StoreClosed.
        """
        ...

    async def read(self, query: Callable[[Connection], T], *, patience_s: float | None = READ_PATIENCE_S) -> T:
        """Run a query in a short read-only transaction: one snapshot.

        Raises StoreBusy when too many wait, or when the database has not answered for `patience_s`. With None it is
        tried until it answers or the store closes.
        """
        ...

    def stats(self) -> StoreStats: ...

    def give_up(self) -> None:
        """Steps that fail are not tried again from now on: they end with StoreClosed, and `failed` says so."""
        ...

    async def close(self) -> None:
        """Finish the steps in hand, then close every connection."""
        ...


class WriteLocks(Protocol):
    """The locks on the transcripts of sessions, which processes that write there take around their steps."""

    def hold(
        self,
        session_key: str,
        who: str,
        *,
        allow_reentrant: bool = False,
        timeout_ms: int | None = None,
        hurried: Callable[[], bool] = ...,
    ) -> AbstractAsyncContextManager[None]:
        """Hold the lock of a session inside the block; `who` is the writer, a run or a command.

        Waits up to `timeout_ms` (None: as configured), or until `hurried()`; then SessionBusy, which names the
        holder. A writer that holds it already is refused at once, or with `allow_reentrant` holds it once more.
        Raises LockUnusable.
        """
        ...


class Lease(Protocol):
    """What keeps a worker alive in a shared database. Calls back on the loop that started it."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...


class LockUnusable(Exception):
    """The lock's file cannot be used. The message names the file and says why. `passing`: it may be possible later."""

    def __init__(self, detail: str, *, passing: bool = False) -> None:
        super().__init__(detail)
        self.passing = passing


class StoreClosed(Exception):
    """The store is closing and takes no more."""


class StepUnsettled(Exception):
    """Given up by its patience. `begun`: it had been handed to the database, so its outcome is unknown."""

    def __init__(self, *, begun: bool) -> None:
        super().__init__("the store did not answer in time")
        self.begun = begun
