"""The store under load: writers and readers at once, callers that are cancelled, and nothing left open behind them."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.kit.client import API
from tests.kit.gauges import level, until, until_quiet
from tests.kit.invariants import check_at_rest
from tests.kit.model_server import done, finish, hold, text
from tests.kit.raw import Leaving, head, json_request, leave
from tests.kit.rules import check_case
from tests.kit.service import Service, ServiceFactory

RUNS = f"{API}/runs"
READERS = 5
"""Threads that read, `store.pool_size`, each with a connection of three files: made when first needed."""

PATIENT = {"limits.accept_wait_ms": 60_000}
"""For hundreds of posts in one instant on a machine that does other things too."""


def _check_log(one: Service) -> None:
    for word in ("locked", "Traceback", "store.retry", "busy"):
        assert word not in one.log, one.log[-3000:]


async def _load(one: Service, sessions: int, runs: int) -> None:
    """All posted at once, with readers of every list beside them until the last has ended."""
    statuses: list[int] = []
    over = asyncio.Event()

    async def read() -> None:
        paths = [f"{RUNS}?limit=200", f"{API}/sessions?limit=200", f"{API}/audit?limit=500"]
        paths += [f"{API}/sessions/load-{number}/transcript" for number in range(3)]
        while not over.is_set():
            for path in paths:
                statuses.append((await one.request("GET", path)).status)

    async def talk(number: int) -> list[str]:
        session = f"load-{number}"
        posts = [one.post(f"{session} {n} [s:{session}]", session, queue={"cap": runs + 1}) for n in range(runs)]
        answers = await asyncio.gather(*posts)
        assert {answer.status for answer in answers} == {202}, [answer.body for answer in answers]
        for answer in answers:
            assert (await one.ended(answer.run_id, 120_000))["status"] == "succeeded"
        return [answer.run_id for answer in answers]

    readers = [asyncio.create_task(read()) for _ in range(4)]
    talks = await asyncio.gather(*(talk(number) for number in range(sessions)))
    over.set()
    await asyncio.gather(*readers)
    assert set(statuses) <= {200, 404} and 200 in statuses, set(statuses)
    run_ids = [run_id for ids in talks for run_id in ids]
    await until_quiet(one)
    await check_case(one, run_ids[:: max(1, len(run_ids) // 20)], sessions=["load-0"])
    check_at_rest(one, accepted=run_ids)
    _check_log(one)
    one.store.check_free()
    await one.restart(hard=True)
    check_at_rest(one, accepted=run_ids)
    await check_case(one, run_ids[:3], sessions=["load-0"])


async def test_sessions_and_readers_at_once_never_meet_a_lock(service: ServiceFactory) -> None:
    """STORE-01"""
    async with service(PATIENT) as one:
        await _load(one, sessions=12, runs=5)


@pytest.mark.drill
@pytest.mark.timeout(400)
async def test_fifty_sessions_of_ten_runs_and_readers_at_once(service: ServiceFactory) -> None:
    """STORE-01, whole"""
    async with service(PATIENT) as one:
        await _load(one, sessions=50, runs=10)


async def _aborts_and_leavers(one: Service, count: int) -> None:
    """Runs that are aborted at any time, beside clients that leave in the middle of every kind of request."""
    chance = random.Random(6)
    one.model.on("cut me", [text(*"some text in deltas ", delay_s=0.005), hold("cut"), finish(), done()])
    await one.ended(await one.run("x", "before"))
    await asyncio.gather(*(one.get(RUNS) for _ in range(30)))
    await until_quiet(one)
    before = level(one)
    run_ids: list[str] = []

    async def abort(number: int) -> None:
        run_id = await one.run(f"cut me {number}", f"cut-{number % 10}", queue={"cap": 1000})
        run_ids.append(run_id)
        for _ in range(chance.randint(0, 20)):
            await one.get(f"{RUNS}/{run_id}")
        await one.abort(run_id)

    async def go(number: int) -> None:
        key = f"gone-{number % 10}"
        posted = {"message": "gone", "sessionKey": key, "queue": {"cap": 1000}}
        requests = [
            head("GET", f"{RUNS}?limit=200"),
            head("GET", f"{API}/audit?limit=500"),
            head("GET", f"{API}/sessions/before/transcript"),
            head("GET", f"{RUNS}/{run_ids[number % len(run_ids)]}/wait"),
            head("POST", f"{API}/sessions/{key}/abort"),
            json_request("POST", RUNS, posted),
            json_request("POST", RUNS, posted, [("Prefer", "wait=50")]),
        ]
        ways: list[Leaving] = ["close", "reset"]
        await leave(one.address, requests[number % len(requests)], ways[number % 2])

    for start in range(0, count, 10):
        numbers = range(start, min(count, start + 10))
        await asyncio.gather(*(abort(number) for number in numbers), *(go(n) for n in numbers if run_ids))
    one.model.release("cut")
    for run_id in run_ids:
        assert (await one.ended(run_id, 60_000))["status"] in ("cancelled", "succeeded")
    await until(lambda: not one.query("SELECT id FROM run WHERE ended_at IS NULL"), "all runs have ended", 60)
    await until_quiet(one, store_active_reads=0)
    check_at_rest(one, accepted=run_ids)
    await check_case(one, run_ids[:10], sessions=["cut-0", "gone-0", "before"])
    await until_quiet(one, store_active_reads=0)
    one.store.check_free()
    after = level(one)
    assert after.threads <= before.threads + 5 + READERS, f"threads: {before} {after}"
    assert after.files <= before.files + 5 + 3 * READERS, f"file handles: {before} {after}"
    for word in ("locked", "Traceback", "store.retry"):
        assert word not in one.log, one.log[-3000:]


async def test_aborts_and_clients_that_leave_give_everything_back(service: ServiceFactory) -> None:
    """STORE-02"""
    async with service({"store.pool_size": 5}) as one:
        await _aborts_and_leavers(one, 60)


@pytest.mark.drill
@pytest.mark.timeout(400)
async def test_five_hundred_aborts_and_leavers_give_everything_back(service: ServiceFactory) -> None:
    """STORE-02, whole"""
    async with service({"store.pool_size": 5}) as one:
        await _aborts_and_leavers(one, 500)


async def test_a_database_that_another_process_locks_under_way_is_waited_for(service: ServiceFactory) -> None:
    """Posts are refused as busy meanwhile, reads go on; once it is free everything does."""
    async with service({"limits.accept_wait_ms": 2_000}) as one:
        first = await one.run("x", "locked")
        await one.ended(first)
        with one.store.locked():
            refused = await one.post("y", "locked", "locked-1")
            assert (refused.status, refused.code) == (503, "store-busy"), refused
            assert (await one.record(first))["status"] == "succeeded"
            assert (await one.request("GET", "/healthz")).status == 200
        answer = await one.post("y", "locked", "locked-1")
        assert answer.status == 202
        if "runId" in refused.body:
            assert answer.run_id in (refused.body["runId"], *[run["runId"] for run in await one.runs()])
        await check_case(one, [first, answer.run_id], sessions=["locked"])
        assert len(await one.runs(sessionKey="locked")) == 3
        assert "Traceback" not in one.log
