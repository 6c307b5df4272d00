"""Open streams hold nothing of the database: with a small pool and many streams everything else goes on."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.kit.client import API
from tests.kit.gauges import gauges, until_quiet
from tests.kit.model_server import done, finish, hold, text
from tests.kit.rules import check_case
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import check_stream

ANSWER_S = 2.5
"""Five times the half second of the case, for a machine that others use too."""


async def _many_streams(one: Service, pool: int, streams: int) -> None:
    one.model.on("hold-the-pool", [text("before "), hold("pool"), text("after"), finish(), done()])
    run_ids = [await one.run(f"hold-the-pool {number}", f"pool-{number}") for number in range(5)]
    opened = await asyncio.gather(*(one.stream(run_ids[number % 5]) for number in range(streams)))
    for stream in opened:
        await stream.until(lambda event: event.payload.get("delta") == "before ", 30)
    seen = await until_quiet(one, open_streams=streams, runs_executing=5, store_active_reads=0)
    assert seen["store_pool_size"] == pool
    handles = one.store.handles(one.pid)
    one.store.check_free()

    async def calls(number: int) -> float:
        begun = time.monotonic()
        run_id = await one.run("beside the streams", f"beside-{number}")
        await one.record(run_id)
        await one.get(f"{API}/runs", limit=50)
        await one.get(f"{API}/audit", limit=50)
        took = (time.monotonic() - begun) / 4
        assert (await one.ended(run_id))["status"] == "succeeded"
        await one.transcript(f"beside-{number}")
        return took

    for _ in range(3):
        assert max(await asyncio.gather(*(calls(number) for number in range(10)))) < ANSWER_S
    assert (await gauges(one))["open_streams"] == streams
    bound = max(handles, 2 * (pool + 2))
    assert one.store.handles(one.pid) <= bound, "handles of the database grew with the streams"
    one.model.release("pool")
    for events in await asyncio.gather(*(stream.collect_until_done() for stream in opened)):
        assert check_stream(events).texts == ["before after"]
    for stream in opened:
        stream.close()
    await check_case(one, run_ids, sessions=["pool-0", "beside-0"])
    await until_quiet(one, store_active_reads=0)


async def test_a_hundred_streams_leave_a_pool_of_five_alone(service: ServiceFactory) -> None:
    """WIRE-05"""
    async with service({"store.pool_size": 5}) as one:
        await _many_streams(one, pool=5, streams=100)


@pytest.mark.drill
@pytest.mark.timeout(400)
async def test_a_thousand_streams_hold_no_connection(service: ServiceFactory) -> None:
    async with service({"store.pool_size": 5, "limits.streams_per_principal": 2_000}) as one:
        await _many_streams(one, pool=5, streams=1_000)


@pytest.mark.drill
async def test_a_hundred_streams_leave_a_pool_of_one_alone(service: ServiceFactory) -> None:
    """A stream that held a connection would stop everything at once. WIRE-05"""
    async with service({"store.pool_size": 1}) as one:
        await _many_streams(one, pool=1, streams=100)
