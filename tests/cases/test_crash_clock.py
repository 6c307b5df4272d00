"""The machine's clock steps back: ends stay ends, times stay in order, and a turn is given by order, not by time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kit.gauges import until_quiet
from tests.kit.invariants import check_at_rest
from tests.kit.model_server import ModelServer, done, finish, hold, reply_text, role, text
from tests.kit.rules import check_case
from tests.kit.service import Service, ServiceFactory
from tests.kit.stepped_clock import SteppedClock


async def test_runs_end_once_with_times_in_order_while_the_clock_steps_back_and_stay_ended_over_restarts(
    service: ServiceFactory, tmp_path: Path
) -> None:
    """CRASH-04"""
    await asyncio.gather(
        *(_sequence(service, tmp_path / str(resume), runs=40, resume=resume) for resume in (True, False))
    )


@pytest.mark.drill
async def test_five_hundred_runs_in_sequence_end_at_once_and_stay_ended_over_restarts(
    service: ServiceFactory, tmp_path: Path
) -> None:
    """CRASH-04"""
    await _sequence(service, tmp_path / "drill", runs=500, resume=True)


async def _sequence(service: ServiceFactory, folder: Path, *, runs: int, resume: bool) -> None:
    clock = SteppedClock(folder)
    session = f"clock-{folder.name}"
    async with service({"recovery.resume": resume}, environ=clock.environ) as one:
        run_ids = []
        for number in range(runs):
            if number % 8 == 4:
                run_ids.append(await _stepped_in_the_middle(one, session, number, clock))
            elif number % 8 == 6:
                run_ids += await _stepped_in_the_queue(one, session, number, clock)
            else:
                run_ids.append(await one.run(f"number {number} [s:{session}]", session))
                await one.ended(run_ids[-1])
        before = [await one.record(run_id) for run_id in run_ids]
        for record in before:
            assert record["status"] == "succeeded", record
            assert record["acceptedAt"] <= record["startedAt"] <= record["endedAt"], record
        for hard in (False, True):
            await one.restart(hard=hard)
            assert [await one.record(run_id) for run_id in run_ids] == before
            check_at_rest(one, accepted=run_ids)
        await check_case(one, run_ids[:: max(1, runs // 40)], sessions=[session])
        await until_quiet(one)


async def _stepped_in_the_middle(one: Service, session: str, number: int, clock: SteppedClock) -> str:
    """The clock steps back two seconds between the start of a run and its end."""
    place = f"{session}-{number}"
    one.model.on(f"stepped {number} [s:{session}]", [role(), hold(place), text("at once"), finish(), done()])
    run_id = await one.run(f"stepped {number} [s:{session}]", session)
    await one.model.until_held(place)
    clock.step_back(2)
    one.model.release(place)
    assert (await one.ended(run_id))["status"] == "succeeded"
    return run_id


async def _stepped_in_the_queue(one: Service, session: str, number: int, clock: SteppedClock) -> list[str]:
    """The clock steps back two seconds between the acceptance of a waiting run and its start."""
    place = f"{session}-{number}"
    one.model.on(f"ahead {number} [s:{session}]", [role(), text("first"), hold(place), finish(), done()])
    run_ids = [await one.run(f"{name} {number} [s:{session}]", session) for name in ("ahead", "behind")]
    await one.model.until_held(place)
    clock.step_back(2)
    one.model.release(place)
    for run_id in run_ids:
        assert (await one.ended(run_id))["status"] == "succeeded"
    return run_ids


async def test_a_session_that_waits_for_a_place_keeps_its_turn_when_the_clock_steps_back(
    service: ServiceFactory, model: ModelServer, tmp_path: Path
) -> None:
    """LANE-04"""
    clock = SteppedClock(tmp_path / "clock")
    model.on("first", [role(), text("first"), hold("first"), finish(), done()])
    model.default(lambda request: reply_text(request.last_user_text, delay_s=0.01))
    async with service({"agents.defaults.max_concurrent": 1}, environ=clock.environ) as one:
        backlog = [await one.run("first [s:a]", "a")]
        await model.until_held("first")
        backlog += [await one.run(f"queued {number} [s:a]", "a") for number in range(12)]
        newcomer = await one.run("hello [s:b]", "b")
        await model.until(
            lambda: one.query("SELECT lane FROM session WHERE key = 'b'") == [{"lane": "waiting"}], "b in line"
        )
        clock.step_back(3600)
        model.release("first")
        await asyncio.gather(*(one.ended(run_id) for run_id in (*backlog, newcomer)))
        order = [request.session for request in model.requests]
        assert order[: order.index("b")].count("a") <= 2, f"b waited for {order}"
        await check_case(one, [*backlog, newcomer], sessions=["a", "b"])
        check_at_rest(one, accepted=[*backlog, newcomer])
