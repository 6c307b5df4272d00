"""Runs that wait for their own session hold no place of the shared pool, and a long backlog keeps nobody out."""

from __future__ import annotations

import asyncio

from tests.kit.gauges import until_quiet
from tests.kit.invariants import check_at_rest, check_invariants
from tests.kit.model_server import ModelServer, done, finish, hold, reply_text, role, text
from tests.kit.rules import check_case
from tests.kit.service import ServiceFactory

DEEP = {"cap": 100}


async def test_a_busy_session_with_a_backlog_takes_one_place_of_the_pool_only(
    service: ServiceFactory, model: ModelServer
) -> None:
    """LANE-03"""
    model.on("the long one", [role(), text("long"), hold("long"), finish(), done()])
    async with service({"agents.defaults.max_concurrent": 2}) as one:
        run_ids = [await one.run("the long one [s:a]", "a")]
        run_ids += [await one.run(f"queued {n} [s:a]", "a") for n in range(3)]
        await model.until_held("long")
        run_ids.append(newcomer := await one.run("hello [s:b]", "b"))
        assert (await one.ended(newcomer))["status"] == "succeeded"

        check_invariants(one, accepted=run_ids, capacity=2)
        assert [(await one.record(run_id))["status"] for run_id in run_ids[:4]] == ["running", *["queued"] * 3]
        model.release("long")
        await check_case(one, run_ids, sessions=["a", "b"])
        check_at_rest(one, accepted=run_ids)
        await until_quiet(one)


async def test_newcomers_get_the_only_place_after_at_most_two_runs_of_a_long_backlog(
    service: ServiceFactory, model: ModelServer
) -> None:
    """LANE-03 (limit 1), LANE-04"""
    model.on("first of the backlog", [role(), text("first"), hold("first"), finish(), done()])
    model.default(lambda request: reply_text(request.last_user_text, delay_s=0.01))
    async with service({"agents.defaults.max_concurrent": 1}) as one:
        backlog = [await one.run("first of the backlog [s:a]", "a", queue=DEEP)]
        backlog += await asyncio.gather(*(one.run(f"queued {n} [s:a]", "a", queue=DEEP) for n in range(20)))
        await model.until_held("first")
        newcomers = [await one.run(f"hello [s:{name}]", name) for name in ("b", "c", "d")]
        model.release("first")

        await asyncio.gather(*(one.ended(run_id, 60_000) for run_id in (*backlog, *newcomers)))
        order = [request.session for request in model.requests]
        for place, name in enumerate(("b", "c", "d")):
            ahead = order[: order.index(name)]
            assert ahead.count("a") <= 2 + place, f"{name} waited for {ahead}"
        assert model.max_in_flight_total == 1, "more runs executed at once than the pool has places"
        await check_case(one, [*backlog, *newcomers], sessions=["a", "b"])
        check_at_rest(one, accepted=backlog)
        await until_quiet(one)


async def test_a_session_whose_waiting_run_was_withdrawn_leaves_its_turn_to_the_next(
    service: ServiceFactory, model: ModelServer
) -> None:
    """LANE-03, LANE-08"""
    model.on("the long one", [role(), text("long"), hold("long"), finish(), done()])
    async with service({"agents.defaults.max_concurrent": 1}) as one:
        run_ids = [await one.run("the long one [s:a]", "a")]
        await model.until_held("long")
        run_ids += [await one.run(f"hello [s:{name}]", name) for name in ("b", "c", "d")]
        waiting = "SELECT count(*) AS n FROM session WHERE lane = 'waiting'"
        await model.until(lambda: one.query(waiting) == [{"n": 3}], "three sessions in line")
        for run_id in run_ids[1:3]:
            assert (await one.abort(run_id))["status"] == "cancelled"
        model.release("long")
        assert (await one.ended(run_ids[3]))["status"] == "succeeded"
        assert [request.session for request in model.requests] == ["a", "d"]
        await check_case(one, run_ids, sessions=["a", "b", "c", "d"])
        check_at_rest(one, accepted=run_ids)
        await until_quiet(one)
