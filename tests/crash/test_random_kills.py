"""Under load the process is killed at random instants, again and again; every run is accounted for. In the drill."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.crash.load import Load
from tests.crash.test_crash_points import paced
from tests.crash.test_crash_points_tools import check_probes, with_tools
from tests.kit.model_server import ModelServer
from tests.kit.service import ServiceFactory

KILLS = 25
SEED = 20261130


@pytest.mark.drill
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tools", [False, True], ids=["text", "tools"])
@pytest.mark.parametrize("aborts", [0, 3], ids=["plain", "with aborts"])
async def test_kills_at_random_instants(service: ServiceFactory, model: ModelServer, aborts: int, tools: bool) -> None:
    chance = random.Random(SEED + aborts)
    model.default(with_tools if tools else paced)
    one = service({"agents.defaults.max_concurrent": 4}, probes=True)
    await one.up()
    load = Load(one)
    load.start(sessions=8, abort_every=aborts)
    for _ in range(KILLS):
        await asyncio.sleep(chance.uniform(0.0, 0.7))  # the instant of the kill is the input of this test
        one.kill()
        await one.up()
    await load.finish()
    await load.check()
    if tools:
        check_probes(one)
