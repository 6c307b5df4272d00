"""A queued run that is withdrawn never runs, and the queue moves on behind it, whatever its predecessor does."""

from __future__ import annotations

import asyncio

import pytest

from tests.kit.gauges import until_quiet
from tests.kit.model_server import done, finish, hold, reply_text, role, text
from tests.kit.rules import check_case, check_run
from tests.kit.service import Service


async def test_a_withdrawn_run_never_reaches_the_model_and_the_one_behind_it_runs(shared_service: Service) -> None:
    """LANE-08"""
    session, model = "withdrawn", shared_service.model
    model.on("first", [role(), text("first"), hold("first"), finish(), done()])
    first, second, third = [await shared_service.run(f"{name} [s:{session}]", session) for name in _NAMES]
    await model.until_held("first")

    answer = await shared_service.abort(second, "not needed any more")
    assert (answer["status"], (await shared_service.record(second))["status"]) == ("cancelled", "cancelled")
    waited = await shared_service.wait(second, 0)
    assert (waited["status"], waited["error"]["code"], waited["startedAt"]) == ("error", "cancelled", None)
    assert (await shared_service.record(third))["receipt"]["behind"] == first

    model.release("first")
    assert [(await shared_service.ended(run_id))["status"] for run_id in (first, third)] == ["succeeded"] * 2
    await check_case(shared_service, [first, second, third], sessions=[session])
    assert [request.last_user_text.split()[0] for request in model.requests_of(session)[:2]] == ["first", "third"]
    assert model.requests_with("second") == []
    await until_quiet(shared_service)


async def test_a_run_withdrawn_in_the_instant_its_predecessor_ends_stops_nobody_behind_it(
    shared_service: Service,
) -> None:
    """LANE-08"""
    await _race(shared_service, repeats=24)


@pytest.mark.drill
async def test_two_hundred_runs_withdrawn_in_the_instant_their_predecessor_ends(shared_service: Service) -> None:
    """LANE-08"""
    await _race(shared_service, repeats=200)


_NAMES = ("first", "second", "third")


async def _race(one: Service, repeats: int) -> None:
    one.model.on("second", [role(), text("I should not be here"), hold("never")])
    one.model.on("third", reply_text("here I am"))
    await asyncio.gather(*(_race_in_turn(one, [f"race-{n}" for n in range(at, repeats, 4)]) for at in range(4)))
    await check_case(one, sessions=["race-0"])
    await until_quiet(one)


async def _race_in_turn(one: Service, sessions: list[str]) -> None:
    """Closes in on the instant: an abort that came too early is sent later the next time, and the other way round."""
    lead_s = 0.0
    for session in sessions:
        early = await _race_once(one, session, lead_s)
        lead_s += -0.002 if early else 0.002


async def _race_once(one: Service, session: str, lead_s: float) -> bool:
    """The abort is sent so long before the first run may end (or after, when negative). Whether it found it queued."""
    model = one.model
    model.on(f"first [s:{session}]", [role(), text("first"), hold(session), finish(), done()])
    runs = [await one.run(f"{name} [s:{session}]", session) for name in _NAMES]
    await model.until_held(session, 1, 30)
    asyncio.get_running_loop().call_later(max(0.0, lead_s), model.release, session)
    await asyncio.sleep(max(0.0, -lead_s))
    answer = await one.abort(runs[1])
    first, second, third = [await one.ended(run_id) for run_id in runs]
    assert [record["status"] for record in (first, second, third)] == ["succeeded", "cancelled", "succeeded"]
    if second["startedAt"] is None:
        assert answer["status"] == "cancelled"
        assert all("second" not in request.last_user_text for request in model.requests_of(session))
    else:
        assert answer["status"] == "running"
    await asyncio.gather(*(check_run(one, run_id) for run_id in runs))
    return second["startedAt"] is None
