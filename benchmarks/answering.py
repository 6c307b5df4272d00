"""Measurements of one answer at a time: when the run is accepted, when its first text comes, how long a long one takes.

Calls of different targets alternate, so that a noisy moment of the machine meets all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from statistics import median

from benchmarks.figures import Figure, Goal, percentile
from benchmarks.load import load
from benchmarks.plan import LOAD_S_MAX, Plan
from benchmarks.stage import Stage
from benchmarks.targets import Call, Target, session

SESSIONS = 20
CLIENTS = 32

Run = Callable[[str, str], Awaitable[Call]]


async def accept(stage: Stage, plan: Plan) -> list[Figure]:
    """Accepting alone: the model never answers, every run has a session of its own, most wait for a slot."""
    figures: dict[tuple[int, str], Figure] = {}
    for clients in (1, CLIENTS):
        many = f"{clients} client{'s' * (clients > 1)}"
        loaded = clients > 1
        figures[clients, "p50"] = Figure(f"accept p50, {many}", "ms")
        figures[clients, "p99"] = Figure(f"accept p99, {many}", "ms", Goal(80) if loaded else None)
        figures[clients, "rate"] = Figure(
            f"accepts, {many}", "1/s", Goal(400, at_least=True) if loaded else None, is_rate=True
        )

    async def one(target: Target) -> None:
        for clients, calls in ((1, plan.count(200, 20)), (CLIENTS, plan.count(1600, 100))):
            what = f"accept, {target.name}, {clients} clients"
            done = plan.checked(
                what, await load(lambda _: target.accept(session(), "mute"), calls, clients, LOAD_S_MAX)
            )
            times_ms = done.accept_ms
            figures[clients, "p50"].add(target.name, median(times_ms))
            figures[clients, "p99"].add(target.name, percentile(times_ms, 99))
            figures[clients, "rate"].add(target.name, done.per_s)

    for _ in range(plan.repeats):
        await one(stage.direct)
        async with stage.floor() as floor:
            await one(floor)
        async with stage.laneway() as laneway:
            await one(laneway)
    return list(figures.values())


async def first_token(stage: Stage, plan: Plan) -> list[Figure]:
    """The first text of an answer: POST as an event stream, and POST followed by GET."""
    first = Figure("first token", "ms")
    over = Figure("first token over direct", "ms", Goal(10), compares=False)
    in_two = Figure("first token over direct, POST then GET", "ms", compares=False)
    async with stage.floor() as floor, stage.laneway() as laneway:
        runs: dict[str, Run] = {
            "direct": stage.direct.run,
            "floor": floor.run,
            "laneway": laneway.run,
            "in two": laneway.run_in_two,
        }
        for _ in range(plan.repeats):
            calls = await _alternate(runs, "d8", plan.count(40, 3))
            times_ms = {name: median((call.first - call.begun) * 1000 for call in calls[name]) for name in runs}
            for name in ("direct", "floor", "laneway"):
                first.add(name, times_ms[name])
            for name in ("floor", "laneway"):
                over.add(name, times_ms[name] - times_ms["direct"])
            in_two.add("laneway", times_ms["in two"] - times_ms["direct"])
    return [first, over, in_two]


async def long_answer(stage: Stage, plan: Plan) -> list[Figure]:
    """200 deltas to the end of the answer: as they come in one piece, and each in a piece of its own."""
    figures: list[Figure] = []
    async with stage.floor() as floor, stage.laneway() as laneway:
        runs: dict[str, Run] = {"direct": stage.direct.run, "floor": floor.run, "laneway": laneway.run}
        for spec, how in (("d200", "at once"), ("d200-apart", "one by one")):
            whole = Figure(f"200 deltas {how}", "ms")
            goal = Goal(60) if spec == "d200" else None
            over = Figure(f"200 deltas {how}, over direct", "ms", goal, compares=False)
            for _ in range(plan.repeats):
                calls = await _alternate(runs, spec, plan.count(20, 3))
                times_ms = {name: median((call.done - call.begun) * 1000 for call in calls[name]) for name in runs}
                for name in runs:
                    whole.add(name, times_ms[name])
                for name in ("floor", "laneway"):
                    over.add(name, times_ms[name] - times_ms["direct"])
            figures += [whole, over]
    return figures


async def tools(stage: Stage, plan: Plan) -> list[Figure]:
    """Calls of a tool: what is checked, made durable before and after them, and told, around the tool's own time."""
    figures: list[Figure] = []
    async with stage.laneway() as laneway:
        for spec, how in (("call1-d8", "one call"), ("call8-d8", "eight side by side")):
            goal = Goal(5) if spec == "call1-d8" else None
            over = Figure(f"tool overhead, {how}", "ms", goal, compares=False)
            for _ in range(plan.repeats):
                calls = [await laneway.run(session(), spec) for _ in range(plan.count(40, 5))]
                over.add("laneway", median(call.tools_ms for call in calls))
            figures.append(over)
    return figures


async def _alternate(runs: dict[str, Run], spec: str, rounds: int) -> dict[str, list[Call]]:
    """Each of `runs` once a round, in sessions that grow alike."""
    sessions = [session() for _ in range(SESSIONS)]
    calls: dict[str, list[Call]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, run in runs.items():
            calls[name].append(await run(f"{sessions[number % SESSIONS]}-{name[:2]}", spec))
    return calls
