"""Assembly: the one place where the parts of a deployment are chosen and put together."""

from __future__ import annotations

from app.clock import SystemClock, UuidIds
from app.domain.capacity import Capacity
from app.events.memory import MemoryTail
from app.events.reader import EventReader
from app.lanes.inprocess import InProcessLanes
from app.providers.resolve import Providers
from app.runs.control import RunControl
from app.runs.executor import Executor, Surroundings
from app.runs.intake import RunIntake
from app.runs.lane import LaneDrain
from app.runs.recovery import Sweeper
from app.runs.service import Service
from app.runs.streams import StreamGate
from app.runs.wait import RunWaiter
from app.runs.worker import Worker
from app.settings import Settings
from app.store.files import database_path
from app.store.sqlite import SqliteStore


def build(settings: Settings) -> Service:
    """The embedded deployment: one process, SQLite in the state directory, lanes and tail in memory.

    Call it inside the event loop that will run the service, with the database already migrated.
    """
    clock, ids = SystemClock(), UuidIds()
    store = SqliteStore(
        database_path(settings.state_dir),
        clock,
        synchronous=settings.store.synchronous,
        readers=settings.store.pool_size,
        queue_steps_max=settings.limits.store_queue_steps,
    )
    tail = MemoryTail()
    lanes = InProcessLanes()
    providers = Providers(settings)
    worker = Worker(clock, ids, Capacity(settings.max_concurrent_runs()))
    around = Surroundings(settings, store, tail, lanes, clock, ids, providers, worker)
    executor = Executor(around)
    lanes.start(LaneDrain(around, executor).drain)
    return Service(
        around=around,
        executor=executor,
        intake=RunIntake(settings, store, tail, lanes, clock, ids, providers, worker),
        control=RunControl(around, executor),
        waiter=RunWaiter(store, tail, clock),
        reader=EventReader(store, tail),
        sweeper=Sweeper(around),
        streams=StreamGate(settings.limits.streams_per_principal),
    )
