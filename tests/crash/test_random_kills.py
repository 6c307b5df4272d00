"""Under load the process is killed at random instants, again and again; every run is accounted for. In the drill."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.crash.load import Load
from tests.crash.test_crash_points import paced
from tests.crash.test_crash_points_tools import check_probes, with_tools
from tests.kit.gauges import until
from tests.kit.invariants import check_at_rest
from tests.kit.model_server import ModelServer
from tests.kit.service import ServiceFactory

KILLS = 50
"""In each of four kinds of load on each store, so at least 200 a store."""
SESSIONS = 10
RUNS = 6
SEED = 20261130


@pytest.mark.drill
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("tools", [False, True], ids=["text", "tools"])
@pytest.mark.parametrize("aborts", [0, 3], ids=["plain", "with aborts"])
async def test_kills_at_random_instants(service: ServiceFactory, model: ModelServer, aborts: int, tools: bool) -> None:
    """Ten sessions of at least six runs each, some posted twice under their key."""
    chance = random.Random(SEED + aborts)
    model.default(with_tools if tools else paced)
    one = service({"agents.defaults.max_concurrent": 4}, probes=True)
    await one.up()
    load = Load(one, each_min=RUNS, repeat_every=3)
    load.start(SESSIONS, abort_every=aborts)
    for _ in range(KILLS):
        await asyncio.sleep(chance.uniform(0.0, 0.7))  # the instant of the kill is the input of this test
        one.kill()
        await one.up()
    await load.finish()
    await load.check()
    if tools:
        check_probes(one)
    unfolded = "SELECT count(*) AS n FROM run WHERE folded_at IS NULL"
    await until(lambda: one.query(unfolded) == [{"n": 0}], "all runs are folded", 120)
    check_at_rest(one, accepted=[item.run_id for item in load.inputs], folded=True)
    one.store.check_free()
