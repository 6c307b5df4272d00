"""An abort against the natural end of its run: whatever wins, the answer, the record and every reader say the same."""

from __future__ import annotations

import asyncio

import pytest

from tests.kit.gauges import until_quiet
from tests.kit.model_server import done, finish, hold, role, text
from tests.kit.rules import check_case, check_run, reply_texts
from tests.kit.service import Service


async def test_an_abort_in_the_instant_of_the_end_is_either_kept_or_told_to_be_late(shared_service: Service) -> None:
    """ABORT-06"""
    await _race(shared_service, repeats=32)


@pytest.mark.drill
async def test_three_hundred_aborts_in_the_instant_of_the_end(shared_service: Service) -> None:
    """ABORT-06"""
    await _race(shared_service, repeats=300)


async def _race(one: Service, repeats: int) -> None:
    answers = await asyncio.gather(
        *(_race_in_turn(one, [f"end-{n}" for n in range(at, repeats, 4)]) for at in range(4))
    )
    assert {"running", "succeeded"} >= {answer for listed in answers for answer in listed}
    await check_case(one, sessions=["end-0"])
    await until_quiet(one)


async def _race_in_turn(one: Service, sessions: list[str]) -> list[str]:
    """Closes in on the instant: an abort that was kept is sent later the next time, and the other way round."""
    lead_s, answers = 0.0, []
    for session in sessions:
        answers.append(await _race_once(one, session, lead_s))
        lead_s += 0.001 if answers[-1] == "succeeded" else -0.001
    return answers


async def _race_once(one: Service, session: str, lead_s: float) -> str:
    """The abort is sent so long before the run may end (or after, when negative). Its answer's status."""
    model = one.model
    model.on(f"[s:{session}]", [role(), text("some words"), hold(session), text(" and more"), finish(), done()])
    run_id = await one.run(f"hello [s:{session}]", session)
    await model.until_held(session, 1, 30)
    asyncio.get_running_loop().call_later(max(0.0, lead_s), model.release, session)
    await asyncio.sleep(max(0.0, -lead_s))
    answer = await one.abort(run_id)
    record = await one.ended(run_id)
    if answer["status"] == "succeeded":
        assert (record["status"], answer["abortRequestedAt"]) == ("succeeded", None)
        assert reply_texts(record) == ["some words and more"]
    else:
        assert answer["status"] in ("running", "cancelled") and answer["abortRequestedAt"] is not None
        assert (record["status"], record["outcome"]) == ("cancelled", "cancelled"), (answer, record)
    await check_run(one, run_id)
    return str(answer["status"])
