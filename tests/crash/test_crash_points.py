"""The process dies at each crash point of the protocol, starts again, and every accepted run is accounted for.

The points of tools, approvals, client calls, steers, reset, interrupt, collect and fold come with those parts.
"""

from __future__ import annotations

import asyncio
import signal

import pytest

from app.faults import Point
from tests.crash.load import Load
from tests.kit.model_server import ModelServer, Request, done, finish, hold, pause, reply_text, text
from tests.kit.service import ServiceFactory

KILLED = -signal.SIGKILL

CHAINS = {
    "accept and take": [
        (Point.ACCEPT_BEFORE_COMMIT, 3),
        (Point.ACCEPT_COMMITTED, 2),
        (Point.ACCEPT_WOKEN, 2),
        (Point.DRAIN_FETCHED, 4),
        (Point.TAKEN, 4),
    ],
    "model and deltas": [
        (Point.OPENED, 2),
        (Point.DELTAS_TOLD, 1),
        (Point.DELTAS_TOLD, 9),
        (Point.RESPONSE_COMPLETE, 3),
        (Point.OPENED, 5),
    ],
    "settle": [
        (Point.SETTLE_BEFORE_COMMIT, 2),
        (Point.SETTLE_COMMITTED, 3),
        (Point.SETTLE_TOLD, 2),
        (Point.SLOT_FREED, 3),
    ],
    "idle": [(Point.LANE_IDLE, 1), (Point.LANE_IDLE, 2)],
    "abort": [(Point.ABORT_COMMITTED, 1), (Point.ABORT_ANSWERED, 1), (Point.ABORT_COMMITTED, 2)],
    "recovery": [
        (Point.DELTAS_TOLD, 4),
        (Point.SWEEP_BETWEEN, 1),
        (Point.DRAIN_FETCHED, 1),
        (Point.TAKEN, 1),
        (Point.DELTAS_TOLD, 2),
    ],
}


def paced(request: Request) -> list[object]:
    """An answer of ten deltas over some time, with the question in it."""
    steps: list[object] = []
    for number in range(10):
        steps += [text(f"{number} of {request.last_user_text}; "), pause(0.01)]
    return [*steps, finish(), done()]


@pytest.mark.parametrize("chain", CHAINS)
async def test_nothing_is_lost_or_doubled_by_kills(service: ServiceFactory, model: ModelServer, chain: str) -> None:
    """One service dies at one point after the other, each in a life of its own, under load all the time."""
    model.default(paced)
    one = service({"agents.defaults.max_concurrent": 2})
    load = Load(one, waiting=1 if chain == "idle" else 3)
    for life, (point, nth) in enumerate(CHAINS[chain]):
        if life:
            one.launch(f"{point.value}=kill@{nth}")
        else:
            await one.up(f"{point.value}=kill@{nth}")
            load.start(sessions=3, abort_every=2 if chain == "abort" else 0)
        assert await one.until_exit() == KILLED, f"{point} was never passed {nth} times"
    await one.up()
    await load.finish()
    await load.check()


async def test_a_kill_with_the_reserve_of_numbers_nearly_used_up(service: ServiceFactory, model: ModelServer) -> None:
    """The store is held up, so deltas run ahead of it: up to the reserve and no further, and the jump is named."""
    words = [f"{number} " for number in range(6_000)]  # far more than the reserve: what arrives together is one delta
    long = [text("begun "), hold("the lock"), text(*words, delay_s=0.001), finish(), done()]
    model.on("message", long, reply_text("a short one"))
    one = service(faults=f"{Point.BLOCK_NEARLY_USED.value}=kill@1")
    await one.up()
    load = Load(one)
    load.start(sessions=1)
    await model.until_held("the lock")
    with one.store.locked():
        model.release("the lock")
        assert await one.until_exit() == KILLED
    await one.up()
    await load.finish()
    await load.check()
    jumps = [event.data["notKept"] for item in load.inputs for event in item.events if "notKept" in (event.data or {})]
    assert jumps, "no jump was named"


async def test_a_kill_right_after_runs_were_handed_over(service: ServiceFactory, model: ModelServer) -> None:
    """The drain has let go of a run, and dies before it can end in order."""
    model.default(paced)
    one = service({"server.drain_seconds": 0}, faults=f"{Point.LET_GO.value}=kill@1")
    await one.up()
    load = Load(one)
    load.start(sessions=3)
    await model.until(lambda: model.in_flight.total() > 0, "a model request")
    one.terminate()
    assert await one.until_exit() == KILLED
    await one.up()
    await load.finish()
    await load.check()


async def test_a_run_that_kills_the_process_again_and_again_ends_as_interrupted(
    service: ServiceFactory, model: ModelServer
) -> None:
    """Three attempts without progress, then an honest end; the run behind it is not harmed."""
    one = service()
    await one.up(f"{Point.TAKEN.value}=kill@1")
    posting = asyncio.create_task(one.post("the first [s:a]", "a", "first"))
    assert await one.until_exit() == KILLED
    await asyncio.wait([posting])
    for _ in range(2):
        one.launch(f"{Point.TAKEN.value}=kill@1")
        assert await one.until_exit() == KILLED
    await one.up()
    behind = await one.run("the second [s:a]", "a")
    runs = {run["runId"]: run for run in await one.runs(sessionKey="a")}
    assert (await one.ended(behind))["status"] == "succeeded"
    first = next(run for run_id, run in runs.items() if run_id != behind)
    ended = await one.ended(first["runId"])
    assert (ended["status"], ended["error"]["code"]) == ("failed", "interrupted")
