"""A small world around the real steps: one database, workers that come and go, a clock and ids of our own.

Everything the protocol allows may happen here in any order: a wake is late or repeated, a process dies between two
steps, a dead attempt writes once more. Nothing runs by itself; the test decides what happens next.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.pool import StaticPool

from app.domain.capacity import Capacity
from app.domain.event import Event, message_delta, message_reset, model_called
from app.domain.message import Message, TextPart, Usage
from app.domain.outcome import completed, failed
from app.domain.run import Attempt, RunInput
from app.store import tables as t
from app.store.contract import AbortRequested, ClaimLost, Fenced
from app.store.transaction import sweep
from app.store.transaction.abort import Aborted, Wish, abort_run, abort_session
from app.store.transaction.accept import Accepted, Intake, Replayed, accept
from app.store.transaction.attempt import Claim, Entry, keep_deltas, open_model
from app.store.transaction.lane import Left, Taken, Taker, adopt_and_take
from app.store.transaction.settle import Settlement, let_go, settle
from app.store.transaction.wake import Wake
from app.store.transaction.worker import Incarnation, register_worker
from tests.kit.database import Rows

R = TypeVar("R")

CAP = 2
QUEUE_CAP = 4
OWNER = "local"


@cache
def _empty_database() -> bytes:
    """The tables, made once."""
    engine = create_engine("sqlite+pysqlite://", poolclass=StaticPool)
    t.metadata.create_all(engine)
    with engine.connect() as connection:
        raw: Any = connection.connection.driver_connection
        return bytes(raw.serialize())


class Base(Protocol):
    """The database of a world."""

    def step(self, work: Callable[[Connection], R]) -> R:
        """One transaction, whole or not at all."""

    def reading(self) -> contextlib.AbstractContextManager[Rows]:
        """For the checks of the kit."""

    def close(self) -> None: ...


class InMemory:
    """SQLite."""

    def __init__(self) -> None:
        self._engine = create_engine(
            "sqlite+pysqlite://",
            isolation_level="AUTOCOMMIT",
            poolclass=StaticPool,
            connect_args={"check_same_thread": False},
        )
        self._connection: Connection = self._engine.connect()
        self._raw: sqlite3.Connection = self._connection.connection.driver_connection  # type: ignore[assignment]
        self._raw.deserialize(_empty_database())

    def step(self, work: Callable[[Connection], R]) -> R:
        self._raw.execute("BEGIN IMMEDIATE")
        try:
            value = work(self._connection)
        except BaseException:
            self._raw.execute("ROLLBACK")
            raise
        self._raw.execute("COMMIT")
        return value

    @contextlib.contextmanager
    def reading(self) -> Iterator[Rows]:
        def rows(sql: str, *values: Any) -> list[dict[str, Any]]:
            found = self._raw.execute(sql, values)
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found]

        yield rows

    def close(self) -> None:
        self._connection.close()
        self._engine.dispose()


class Emptied:
    """PostgreSQL."""

    def __init__(self, engine: Engine) -> None:
        self._connection = engine.connect()
        with self._connection.begin():
            tables = ", ".join(name for name in t.metadata.tables if name != "slot")
            self._connection.exec_driver_sql(f"TRUNCATE {tables}")

    def step(self, work: Callable[[Connection], R]) -> R:
        with self._connection.begin():
            return work(self._connection)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Rows]:
        def rows(sql: str, *values: Any) -> list[dict[str, Any]]:
            written = sql.replace("%", "%%").replace("?", "%s")
            return [dict(row) for row in self._connection.exec_driver_sql(written, values).mappings()]

        with self._connection.begin():
            yield rows

    def close(self) -> None:
        self._connection.close()


class Numbers:
    """Ids that rise and look alike in every run of a test."""

    def __init__(self) -> None:
        self._next = count(1)

    def new(self) -> str:
        return f"id-{next(self._next):06d}"


@dataclass
class Executing:
    """An attempt in some process, with the numbers its writer holds in memory."""

    attempt: Attempt
    worker: str
    told: int
    written: int
    high: int
    pending: list[Event] = field(default_factory=list)
    message_id: str = ""
    text: str = ""
    has_input: bool = False


@dataclass
class World:
    """State outside the database: what is in the memory of the living process, and what clients know."""

    now_ms: int = 1_000_000
    ids: Numbers = field(default_factory=Numbers)
    worker: str = "worker-0"
    wakes: list[Wake] = field(default_factory=list)
    executing: dict[str, Executing] = field(default_factory=dict)
    zombies: list[Executing] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    promised_aborts: set[str] = field(default_factory=set)

    database: Engine | None = None
    """A PostgreSQL database with our tables, to be emptied; without, a new one of SQLite in memory."""

    def __post_init__(self) -> None:
        self._base: Base = InMemory() if self.database is None else Emptied(self.database)
        self.step = self._base.step
        self.reading = self._base.reading
        self.close = self._base.close
        self._register()

    def taker(self, *, draining: bool = False) -> Taker:
        return Taker(self.worker, Capacity(CAP), self.now_ms, self.ids, draining)

    # what clients do

    def accept(self, session: str, mode: str) -> Accepted | Replayed:
        run_id = self.ids.new()
        asked = RunInput(
            self.ids.new(), [{"type": "text", "text": run_id}], "api", "demo", 0, None, "off", "", True, {}
        )
        intake = Intake(
            run_id=run_id,
            principal=OWNER,
            route="runs",
            idempotency_key=run_id,
            body_hash=run_id,
            session_key=session,
            session_id=None,
            agent="main",
            mode=mode,  # type: ignore[arg-type]
            cap=QUEUE_CAP,
            kind="message",
            lane_name="main",
            label=None,
            input=asked,
            new_session_id=self.ids.new(),
            new_transcript_id=self.ids.new(),
            now_ms=self.now_ms,
            event_bytes_max=65_536,
        )
        done = self.step(lambda conn: accept(conn, intake))
        if isinstance(done, Accepted):
            self.accepted.append(run_id)
            if done.wake is not None:
                self.wakes.append(done.wake)
        return done

    def abort(self, run_id: str) -> None:
        self._aborted([self.step(lambda conn: abort_run(conn, run_id, self._wish(), self.ids))])

    def abort_session(self, session: str) -> None:
        self._aborted(self.step(lambda conn: abort_session(conn, session, self._wish(), self.ids)))

    def _wish(self) -> Wish:
        return Wish(OWNER, "cancelled", None, self.now_ms)

    def _aborted(self, done: list[Aborted]) -> None:
        self.promised_aborts |= {run_id for one in done for run_id in one.signal}

    # what the process does

    def drain(self, wake: Wake) -> None:
        """A wake arrives at a drain; it may be late, repeated or of another life."""
        self._following(self.step(lambda conn: adopt_and_take(conn, wake.session_id, wake.generation, self.taker())))

    def _following(self, taken: Taken | Left) -> None:
        self.wakes += taken.wakes
        if not isinstance(taken, Taken):
            return
        attempt = taken.attempt
        assert attempt.session_id not in self.executing, "two at once in one session"
        seq = attempt.seq_last
        self.executing[attempt.session_id] = Executing(attempt, self.worker, seq, seq, seq, has_input=attempt.has_input)

    def open(self, one: Executing) -> None:
        """T4."""
        message_id = self.ids.new()
        items = [model_called(1, "demo", one.attempt.attempt, message_id)]
        if one.text:
            items.insert(0, message_reset("assistant", one.message_id))
        own = [
            Event(one.attempt.run_id, one.told + place, stream, self.now_ms, payload)
            for place, (stream, payload, _) in enumerate(items, start=1)
        ]
        events = (*one.pending, *own)
        first = None if one.has_input else self._entry("user", one.attempt.input.message_id, one.attempt.run_id)
        claim = self._claim(one)

        def work(conn: Connection) -> int:
            return open_model(conn, claim, message_id, events, first, last=one.written, high=one.high)

        one.high = self.step(work)
        one.told = one.written = events[-1].seq
        one.pending, one.message_id, one.text, one.has_input = [], message_id, "", True

    def tell(self, one: Executing) -> None:
        """A delta is told and not yet written; never above the reserve."""
        if one.message_id and one.told < one.high:
            one.told += 1
            payload = message_delta(one.message_id, "x", len(one.text))
            one.text += "x"
            one.pending.append(Event(one.attempt.run_id, one.told, "assistant", self.now_ms, payload))

    def keep(self, one: Executing) -> None:
        """T5."""
        events, claim = tuple(one.pending), self._claim(one)
        one.high = self.step(lambda conn: keep_deltas(conn, claim, events, last=one.written, high=one.high))
        one.written, one.pending = one.told, []

    def settle(self, one: Executing, *, ok: bool, draining: bool = False) -> None:
        """T10 with the next take. Raises Fenced for an attempt that is no longer the newest."""
        final = None
        if one.text:
            final = self._entry("assistant", one.message_id, one.text, aborted=not ok)
        work = Settlement(
            claim=self._claim(one),
            outcome=completed("stop") if ok else failed("provider-error", "broke"),
            kept=tuple(one.pending),
            last=one.told,
            final=final,
            resets=(),
            told_thinking=False,
            usage=Usage(),
            show_reasoning=False,
            event_bytes_max=65_536,
        )
        token = one.attempt.lane_token
        settled = self.step(lambda conn: settle(conn, work, token, self.taker(draining=draining)))
        assert one.attempt.run_id not in self.promised_aborts or settled.outcome.code == "cancelled"
        self.executing.pop(one.attempt.session_id, None)
        self.wakes += settled.wakes
        self._following(settled.next)

    def let_go(self, one: Executing) -> None:
        """T11. Raises AbortRequested when it can only be settled."""
        claim, kept, token = self._claim(one), tuple(one.pending), one.attempt.lane_token
        self.wakes += self.step(lambda conn: let_go(conn, claim, kept, one.told, token, self.taker()))
        del self.executing[one.attempt.session_id]

    def late_write(self, zombie: Executing) -> None:
        """A dead attempt writes once more: nothing of it may be kept."""
        for write in (
            lambda: self.settle(zombie, ok=True),
            lambda: self.keep(zombie),
            lambda: self.open(zombie),
        ):
            before = len(self.accepted), dict(self.executing)
            with contextlib.suppress(Fenced, ClaimLost, AbortRequested):
                write()
                raise AssertionError(f"a dead attempt of {zombie.attempt.run_id} could write")
            assert before == (len(self.accepted), self.executing)

    # what goes wrong

    def crash(self) -> None:
        """The process dies: its memory is gone. The next one starts and sweeps."""
        self.zombies += self.executing.values()
        self.executing, self.wakes = {}, []
        self.worker = self.ids.new()
        self._register()
        more = True
        while more:
            swept = self.step(lambda conn: sweep.sweep_dead(conn, self.taker(), resume=True))
            self.wakes += swept.wakes
            more = swept.more
        self.wakes += self.step(lambda conn: sweep.overdue_wakes(conn, self.now_ms + 10**9, 1000))

    def lose_drain(self, one: Executing) -> None:
        """A drain task dies of something nobody thought of; its lane is found by the sweep."""
        del self.executing[one.attempt.session_id]
        self.zombies.append(one)

    def sweep(self) -> None:
        """One pass of the sweep."""
        held = self.step(lambda conn: sweep.held_lanes(conn, self.worker))
        lost = [lane for lane in held if lane.session_id not in self.executing]
        swept = self.step(lambda conn: sweep.sweep_abandoned(conn, lost, self.taker(), resume=True))
        self.wakes += swept.wakes
        self.wakes += self.step(lambda conn: sweep.overdue_wakes(conn, self.now_ms - 5000, 1000))
        self.wakes += self.step(lambda conn: sweep.sweep_waiting(conn, self.taker()))

    def _register(self) -> None:
        me = Incarnation(self.worker, "here", 1, "")
        self.step(lambda conn: register_worker(conn, me, self.now_ms, lambda _: True, 0))

    def _claim(self, one: Executing) -> Claim:
        attempt = one.attempt
        return Claim(
            attempt.run_id, attempt.attempt, attempt.session_id, attempt.transcript_id, attempt.take_no, one.told
        )

    def _entry(self, role: Any, message_id: str, text: str, *, aborted: bool = False) -> Entry:
        message = Message(role, message_id, (TextPart(text),), stop_reason="stop" if role == "assistant" else None)
        return Entry(self.ids.new(), message, self.now_ms, aborted)
