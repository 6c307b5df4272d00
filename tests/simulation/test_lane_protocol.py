"""Random lives of the queue: whatever happens in whatever order, no run is lost, none runs twice at once, all end.

The real steps run on a real database; processes, wakes and time are the test's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from app.errors import QueueFull, SessionBusy, SessionNotFound
from app.store.contract import AbortRequested
from tests.kit.database import PostgresDatabase
from tests.kit.invariants import check_invariants
from tests.kit.postgres import PostgresServer
from tests.simulation.world import CAP, Executing, World

SESSIONS = ("a", "b", "c", "d")

picks = st.integers(min_value=0, max_value=10_000)


class LaneProtocol(RuleBasedStateMachine):
    """Rules pick what happens next; `picks` choose among what is there."""

    database: ClassVar[Engine | None] = None

    @initialize()
    def begin(self) -> None:
        self.world = World(database=self.database)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.settle_everything()
            finally:
                self.world.close()

    # clients

    @rule(session=st.sampled_from(SESSIONS), mode=st.sampled_from(("followup", "followup", "reject")))
    def accept(self, session: str, mode: str) -> None:
        before = len(self.world.accepted)
        try:
            self.world.accept(session, mode)
        except (SessionBusy, QueueFull):
            assert len(self.world.accepted) == before

    @precondition(lambda self: self.world.accepted)
    @rule(pick=picks)
    def abort(self, pick: int) -> None:
        self.world.abort(self.world.accepted[pick % len(self.world.accepted)])

    @rule(session=st.sampled_from(SESSIONS))
    def abort_session(self, session: str) -> None:
        try:
            self.world.abort_session(session)
        except SessionNotFound:
            assert not self.world.accepted or session not in self.sessions()

    # the living process

    @precondition(lambda self: self.world.wakes)
    @rule(pick=picks, again=st.booleans())
    def a_wake_arrives(self, pick: int, again: bool) -> None:
        """Any wake, in any order; some arrive twice."""
        wake = self.world.wakes[pick % len(self.world.wakes)]
        if not again:
            self.world.wakes.remove(wake)
        self.world.drain(wake)

    @precondition(lambda self: self.world.wakes)
    @rule(pick=picks)
    def a_wake_is_lost(self, pick: int) -> None:
        self.world.wakes.pop(pick % len(self.world.wakes))

    @precondition(lambda self: self.world.executing)
    @rule(pick=picks)
    def the_model_is_asked(self, pick: int) -> None:
        one = self.one(pick)
        try:
            self.world.open(one)
        except AbortRequested:
            assert one.attempt.run_id in self.world.promised_aborts

    @precondition(lambda self: self.world.executing)
    @rule(pick=picks, deltas=st.integers(min_value=1, max_value=5))
    def deltas_are_told(self, pick: int, deltas: int) -> None:
        for _ in range(deltas):
            self.world.tell(self.one(pick))

    @precondition(lambda self: self.world.executing)
    @rule(pick=picks)
    def deltas_are_kept(self, pick: int) -> None:
        self.world.keep(self.one(pick))

    @precondition(lambda self: self.world.executing)
    @rule(pick=picks, ok=st.booleans(), draining=st.sampled_from((False, False, False, True)))
    def a_run_settles(self, pick: int, ok: bool, draining: bool) -> None:
        self.world.settle(self.one(pick), ok=ok, draining=draining)

    @precondition(lambda self: self.world.executing)
    @rule(pick=picks)
    def a_run_is_handed_over(self, pick: int) -> None:
        one = self.one(pick)
        try:
            self.world.let_go(one)
        except AbortRequested:
            assert one.attempt.run_id in self.world.promised_aborts

    @rule()
    def the_sweep_passes(self) -> None:
        self.world.sweep()

    # what goes wrong

    @rule()
    def the_process_dies(self) -> None:
        self.world.crash()

    @precondition(lambda self: self.world.executing)
    @rule(pick=picks)
    def a_drain_is_lost(self, pick: int) -> None:
        self.world.lose_drain(self.one(pick))
        self.world.sweep()

    @precondition(lambda self: self.world.zombies)
    @rule(pick=picks)
    def a_dead_attempt_writes_once_more(self, pick: int) -> None:
        self.world.late_write(self.world.zombies[pick % len(self.world.zombies)])

    @rule(ms=st.integers(min_value=-3_000, max_value=20_000))
    def time_passes(self, ms: int) -> None:
        """Also backwards: order is never taken from the clock."""
        self.world.now_ms += ms

    # what must hold

    @invariant()
    def the_tables_are_sound(self) -> None:
        if hasattr(self, "world"):
            check_invariants(self.world, accepted=self.world.accepted, capacity=CAP)

    @invariant()
    def no_lane_is_set_with_nothing_to_run_it(self) -> None:
        """Held: somebody executes, or the sweep will look. Waiting: for a slot that is taken or handed on."""
        if not hasattr(self, "world"):
            return
        with self.world.reading() as rows:
            for row in rows("SELECT id, key, lane, lane_owner, waits_for FROM session"):
                if row["lane"] == "held":
                    assert row["lane_owner"] == self.world.worker, f"{row['key']} is held by a dead worker"
                    assert row["id"] in self.world.executing, f"{row['key']} is held and nobody executes"
                if row["lane"] == "waiting":
                    assert row["waits_for"], f"{row['key']} waits for nothing"

    def settle_everything(self) -> None:
        """Nothing goes wrong any more: within bounded passes every run has ended and every lane is idle."""
        world = self.world
        for _ in range(40 + 4 * len(world.accepted)):
            world.now_ms += 10_000
            world.sweep()
            for wake in list(world.wakes):
                world.wakes.remove(wake)
                world.drain(wake)
            for one in list(world.executing.values()):
                if one.attempt.run_id not in world.promised_aborts:
                    world.open(one)
                    world.tell(one)
                world.settle(one, ok=True)
        check_invariants(world, accepted=world.accepted, capacity=CAP)
        with world.reading() as rows:
            unended = rows("SELECT id, status FROM run WHERE status IN ('queued', 'running', 'recovering')")
            assert unended == [], f"runs without an end: {unended}"
            busy = rows("SELECT key, lane FROM session WHERE lane != 'idle' OR writer_run IS NOT NULL")
            assert busy == [], f"lanes that are not given back: {busy}"
            ended = rows("SELECT run_id, count(*) AS n FROM run_event WHERE terminal = 1 GROUP BY run_id")
            assert {row["run_id"]: row["n"] for row in ended} == dict.fromkeys(world.accepted, 1)

    def one(self, pick: int) -> Executing:
        executing = list(self.world.executing.values())
        return executing[pick % len(executing)]

    def sessions(self) -> set[str]:
        with self.world.reading() as rows:
            return {row["key"] for row in rows("SELECT key FROM session")}


PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)

TestLaneProtocol = LaneProtocol.TestCase
TestLaneProtocol.settings = settings(
    max_examples=150, stateful_step_count=80, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck)
)


class LongerLaneProtocol(LaneProtocol):
    """The same for longer, in the drill."""


@pytest.fixture(scope="class")
def a_postgresql_database(_postgres: Callable[[], PostgresServer]) -> Iterator[None]:
    made = PostgresDatabase(_postgres())
    PostgresLaneProtocol.database = create_engine(
        made.url.replace("postgresql:", "postgresql+psycopg:", 1), poolclass=NullPool
    )
    yield
    PostgresLaneProtocol.database.dispose()
    made.drop()


class PostgresLaneProtocol(LaneProtocol):
    """The same steps on the other dialect."""


TestPostgresLaneProtocol = pytest.mark.usefixtures("a_postgresql_database")(PostgresLaneProtocol.TestCase)
TestPostgresLaneProtocol.settings = settings(
    max_examples=15, stateful_step_count=60, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck)
)


TestLongerLaneProtocol = pytest.mark.timeout(900)(pytest.mark.drill(LongerLaneProtocol.TestCase))
TestLongerLaneProtocol.settings = settings(
    max_examples=800, stateful_step_count=100, deadline=None, phases=PHASES, suppress_health_check=list(HealthCheck)
)
