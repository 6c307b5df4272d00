"""Measurements of many runs at once: runs and deltas a second, and the CPU time that a run takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from benchmarks.figures import Figure, Goal
from benchmarks.load import load
from benchmarks.plan import LOAD_S_MAX, Plan
from benchmarks.stage import Stage
from benchmarks.targets import Call, Target, session

SESSIONS = 100
CLIENTS = 32
CLIENTS_LONG = 8

CALLS = {"direct": 4000, "floor": 1000, "laneway": 400}
CALLS_LONG = {"direct": 400, "floor": 80, "laneway": 80}
"""Calls of a repeat: each target is kept busy for seconds, not for long."""


async def runs(stage: Stage, plan: Plan) -> list[Figure]:
    """Whole runs with one delta, 32 clients over 100 sessions that grow with every repeat."""
    rate = Figure(f"runs, {CLIENTS} clients", "1/s", Goal(130, at_least=True), is_rate=True)
    cpu = Figure("CPU time of a run", "ms")
    sessions = [session() for _ in range(SESSIONS)]
    async with stage.floor() as floor, stage.laneway() as laneway:
        targets: tuple[Target, ...] = (stage.direct, floor, laneway)
        for _ in range(plan.repeats):
            for target in targets:
                before_s = target.process.cpu_s()
                calls = plan.count(CALLS[target.name], CLIENTS)
                one = _in_turn(target, sessions, "d1")
                done = plan.checked(f"runs, {target.name}", await load(one, calls, CLIENTS, LOAD_S_MAX))
                rate.add(target.name, done.per_s)
                cpu.add(target.name, (target.process.cpu_s() - before_s) * 1000 / len(done.calls))
    return [rate, cpu]


async def deltas(stage: Stage, plan: Plan) -> list[Figure]:
    """Deltas of long answers, 8 runs at once: those of the model, and the events that carry them."""
    figures: list[Figure] = []
    async with stage.floor() as floor, stage.laneway() as laneway:
        targets: tuple[Target, ...] = (stage.direct, floor, laneway)
        for spec, how in (("d200", "at once"), ("d200-apart", "one by one")):
            rate = Figure(f"deltas {how}, {CLIENTS_LONG} runs", "1/s", is_rate=True)
            events = Figure(f"text events {how}, {CLIENTS_LONG} runs", "1/s", is_rate=True, compares=False)
            for _ in range(plan.repeats):
                sessions = [session() for _ in range(SESSIONS)]
                for target in targets:
                    calls = plan.count(CALLS_LONG[target.name], CLIENTS_LONG)
                    one = _in_turn(target, sessions, spec)
                    done = plan.checked(f"deltas, {target.name}", await load(one, calls, CLIENTS_LONG, LOAD_S_MAX))
                    rate.add(target.name, done.deltas_per_s)
                    events.add(target.name, done.events_per_s)
            figures += [rate, events]
    return figures


def _in_turn(target: Target, sessions: list[str], spec: str) -> Callable[[int], Awaitable[Call]]:
    return lambda n: target.run(sessions[n % len(sessions)], spec)
