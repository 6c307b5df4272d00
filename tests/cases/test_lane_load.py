"""Many sessions at once: every accepted run comes to its end, whatever else goes on in the process."""

from __future__ import annotations

import asyncio
import re

from tests.kit.client import API
from tests.kit.gauges import until_quiet
from tests.kit.invariants import check_at_rest
from tests.kit.model_server import ModelServer, done, finish, hold, role, text
from tests.kit.rules import check_run
from tests.kit.service import ServiceFactory

SESSIONS = 300
AT_ONCE = 250
LOST_WORK = re.compile(r"destroyed but it is pending|was never (awaited|retrieved)|Traceback|\[error")


async def test_three_hundred_runs_in_three_hundred_sessions_all_end_under_memory_pressure(
    service: ServiceFactory, model: ModelServer
) -> None:
    """LANE-09"""
    model.default([role(), text("wait for it, "), hold("all"), text("here it is"), finish(), done()])
    async with service({"agents.defaults.max_concurrent": AT_ONCE}) as one:
        names = [f"load-{number}" for number in range(SESSIONS)]
        run_ids = await asyncio.gather(*(one.run(f"hello [s:{name}]", name) for name in names))
        await model.until_held("all", AT_ONCE, 60)
        # Garbage for the collector while all of them wait: large bodies that are parsed and refused.
        for _ in range(20):
            bodies = ({"message": "x", "metadata": {str(n): [n] * 50 for n in range(400)}} for _ in range(20))
            refused = await asyncio.gather(*(one.request("POST", f"{API}/runs", json=body) for body in bodies))
            assert {answer.status for answer in refused} == {422}
        model.release("all")

        records = await asyncio.gather(*(one.ended(run_id, 60_000) for run_id in run_ids))
        assert {record["status"] for record in records} == {"succeeded"}
        assert {name: model.max_in_flight[name] for name in names} == dict.fromkeys(names, 1)
        check_at_rest(one, accepted=run_ids)
        await asyncio.gather(*(check_run(one, run_id) for run_id in run_ids[::6]))
        await until_quiet(one)
        assert not LOST_WORK.search(one.log), one.log[-4000:]
