"""Measurements of the process itself: its start, its memory, and what an open stream adds to it."""

from __future__ import annotations

import asyncio

from benchmarks.figures import Figure, Goal
from benchmarks.load import load
from benchmarks.plan import Plan
from benchmarks.stage import Stage, first_accept
from benchmarks.targets import Laneway, Target, session
from benchmarks.wire import Exchange, now

SESSIONS = 100
CLIENTS = 32
RUNS = 2000
RUNS_S_MAX = 60.0
STREAMS = 1000
HUNG_RUNS = 8
"""As many as execute at once on the smallest machine, so that each is at its model."""

SETTLE_S = 2.0
OPEN_S_MAX = 30.0
OPENING = 50
MIB = 1 << 20


async def start(stage: Stage, plan: Plan) -> list[Figure]:
    """From the spawn to the first accepted run: on no state at all, and on what was kept."""
    fresh = Figure("cold start, new state", "s", Goal(2.5))
    again = Figure("cold start, kept state", "s")
    folder = stage.folder("unmeasured")
    async with stage.started(folder) as laneway:  # the caches of the disk are warm from here on
        await first_accept(laneway)
    for _ in range(plan.repeats):
        folder = stage.folder("start")
        for figure in (fresh, again):
            async with stage.started(folder) as laneway:
                figure.add("laneway", await first_accept(laneway))
    return [fresh, again]


async def memory(stage: Stage, plan: Plan) -> list[Figure]:
    """Before and after many runs; two thousand at scale 1."""
    total = plan.count(RUNS, 100)
    before = Figure("memory, warm", "MiB")
    after = Figure(f"memory after {total:,} runs", "MiB")
    growth = Figure(f"memory after {total:,} runs, times that of before", "x", Goal(1.3), compares=False)

    async def one(target: Target) -> None:
        sessions = [session() for _ in range(SESSIONS)]
        await asyncio.sleep(SETTLE_S)
        warm = target.process.memory_bytes() / MIB
        before.add(target.name, warm)
        done = await load(lambda n: target.run(sessions[n % SESSIONS], "d1"), total, CLIENTS, RUNS_S_MAX)
        plan.checked(f"memory, {target.name}", done)
        if len(done.calls) < total:
            plan.errors.append(f"memory, {target.name}: only {len(done.calls)} of {total} runs within the time")
        await asyncio.sleep(SETTLE_S)
        grown = target.process.memory_bytes() / MIB
        after.add(target.name, grown)
        growth.add(target.name, grown / warm)

    async with stage.floor() as floor:
        await one(floor)
    async with stage.laneway() as laneway:
        await one(laneway)
    return [before, after, growth]


async def streams(stage: Stage, plan: Plan) -> list[Figure]:
    """Streams that follow runs of a silent model, in a process that has done little else.

    After a long load the heap has free room, and the growth would read too low.
    """
    wanted = plan.count(STREAMS, 100)
    figure = Figure(f"memory of an idle stream, {wanted:,} open", "KiB", Goal(45))
    for _ in range(plan.repeats):
        figure.add("laneway", await _stream_kib(stage, plan, wanted))
    return [figure]


async def _stream_kib(stage: Stage, plan: Plan, wanted: int) -> float:
    async with stage.laneway() as laneway:
        run_ids = [await laneway.start(session(), "mute") for _ in range(HUNG_RUNS)]
        first = await _open(laneway, run_ids, HUNG_RUNS)
        await asyncio.sleep(SETTLE_S)
        before = laneway.process.memory_bytes()
        held = await _open(laneway, run_ids, wanted)
        await asyncio.sleep(SETTLE_S)
        growth = laneway.process.memory_bytes() - before
        served = sum(exchange.is_open and exchange.status == 200 for exchange in held)
        for exchange in (*first, *held):
            exchange.transport.abort()
    if served < wanted:
        plan.errors.append(f"streams: only {served} of {wanted} were served, so the figure means little")
    return growth / 1024 / max(served, 1)


async def _open(laneway: Laneway, run_ids: list[str], count: int) -> list[Exchange]:
    """Open streams, some at a time; those that are not answered in time stay without a status."""
    held: list[Exchange] = []
    begun = now()
    while len(held) < count and now() - begun < OPEN_S_MAX:
        few = [
            await laneway.hold(run_ids[number % len(run_ids)])
            for number in range(len(held), min(count, len(held) + OPENING))
        ]
        held += few
        while now() - begun < OPEN_S_MAX and any(stream.is_open and not stream.status for stream in few):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return held
