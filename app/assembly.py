"""Assembly: the one place where the parts of a deployment are chosen and put together."""

from __future__ import annotations

from collections.abc import Iterable

from app.clock import Clock, SystemClock, UuidIds
from app.domain.audit import CallNames
from app.domain.capacity import Capacity
from app.domain.masking import Masker
from app.errors import StoreUnusable
from app.events.memory import MemoryTail
from app.events.reader import EventReader
from app.lanes.inprocess import InProcessLanes
from app.providers.resolve import Providers
from app.runs.control import RunControl
from app.runs.executor import Executor, Surroundings
from app.runs.intake import RunIntake
from app.runs.lane import LaneDrain
from app.runs.recorder import Showing
from app.runs.recovery import Sweeper
from app.runs.service import Service
from app.runs.streams import StreamGate
from app.runs.wait import RunWaiter
from app.runs.worker import Worker
from app.settings import EMBEDDED, Settings
from app.store.contract import Lease, Store, WriteLocks
from app.store.files import database_path, secret_key
from app.store.session_lock import RowLocks, SessionLocks
from app.store.sqlite import SqliteStore
from app.tools.built_in import built_in_tools
from app.tools.contract import Tool
from app.tools.registry import ToolRegistry


def build(settings: Settings, *, secret: bytes = b"", tools: Iterable[Tool] = ()) -> Service:
    """The deployment of one process: lanes and tail in memory, SQLite in the state directory or a PostgreSQL server.

    `secret` keys the ledger's references (`store.files.secret_key`; made when not given), `tools` come beside the
    built-in ones. Call it inside the event loop that will run the service, with the database already migrated.
    """
    clock, ids = SystemClock(), UuidIds()
    store = _open_store(settings, clock)
    tail = MemoryTail()
    lanes = InProcessLanes()
    providers = Providers(settings)
    worker = Worker(clock, ids, Capacity(settings.max_concurrent_runs()))
    registry = ToolRegistry((*built_in_tools(settings), *tools), allow=settings.tools.allow, deny=settings.tools.deny)
    showing = Showing(
        Masker(settings.secrets()),
        CallNames(secret or secret_key(settings.state_dir), registry.names),
        settings.limits.event_bytes,
        settings.limits.tool_event_chars,
    )
    around = Surroundings(
        settings, store, tail, lanes, clock, ids, providers, registry, showing, worker, _locks(settings, clock)
    )
    executor = Executor(around)
    lanes.start(LaneDrain(around, executor).drain)
    service = Service(
        around=around,
        executor=executor,
        intake=RunIntake(settings, store, tail, lanes, clock, ids, providers, worker),
        control=RunControl(around, executor),
        waiter=RunWaiter(store, tail, clock),
        reader=EventReader(store, tail),
        sweeper=Sweeper(around),
        streams=StreamGate(settings.limits.streams_per_principal),
    )
    if store.shared:
        service.lease = _lease(settings, store, worker.id, executor)
    return service


def _open_store(settings: Settings, clock: Clock) -> Store:
    chosen, queue_steps_max = settings.store, settings.limits.store_queue_steps
    if chosen.url == EMBEDDED:
        return SqliteStore(
            database_path(settings.state_dir),
            clock,
            synchronous=chosen.synchronous,
            readers=chosen.pool_size,
            queue_steps_max=queue_steps_max,
        )
    from app.store.postgres import PostgresStore

    return PostgresStore(chosen.url, clock, connections=chosen.pool_size, queue_steps_max=queue_steps_max)


def _locks(settings: Settings, clock: Clock) -> WriteLocks:
    if settings.store.url != EMBEDDED:
        return RowLocks()
    locks = SessionLocks(settings.state_dir, clock, timeout_ms=settings.session.write_lock.acquire_timeout_ms)
    locks.prepare()
    return locks


def _lease(settings: Settings, store: Store, worker_id: str, executor: Executor) -> Lease:
    from app.store.lease import DatabaseLease

    def lost() -> None:
        executor.fence_all()
        if not store.failed.done():
            store.failed.set_result(StoreUnusable("Another Laneway took over this database, so this one ends."))

    return DatabaseLease(settings.store.url, worker_id, lost=lost, doubtful=executor.fence_all)
