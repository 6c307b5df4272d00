"""A session-wide stop ends everything of the session, the waiting runs first, and tells every waiter."""

from __future__ import annotations

import asyncio

from tests.kit.gauges import until_quiet
from tests.kit.model_server import done, finish, hold, role, text
from tests.kit.rules import check_case
from tests.kit.service import Service


async def test_a_session_abort_ends_the_waiting_runs_first_then_the_executing_one(shared_service: Service) -> None:
    """ABORT-05"""
    session, model = "stop-all", shared_service.model
    model.on("active", [role(), text("some words"), hold("never"), finish(), done()])
    active = await shared_service.run(f"active [s:{session}]", session)
    queued = [await shared_service.run(f"queued {n} [s:{session}]", session) for n in range(3)]
    await model.until(lambda: bool(model.requests_of(session)), "the active run's request")
    waits = [asyncio.create_task(shared_service.wait(run_id)) for run_id in (active, *queued)]
    followers = [shared_service.follow(run_id).start() for run_id in (active, *queued)]
    await asyncio.gather(*(follower.until(lambda event: event.seq is not None) for follower in followers))
    assert not any(wait.done() for wait in waits)

    answer = await shared_service.abort_session(session, "all of it")
    assert [one["runId"] for one in answer["runs"]] == [*queued, active]
    assert [one["status"] for one in answer["runs"][:3]] == ["cancelled"] * 3
    async with asyncio.timeout(10):
        waited = await asyncio.gather(*waits)
    assert [(one["status"], one["error"]["code"]) for one in waited] == [("error", "cancelled")] * 4
    for follower in followers:
        terminal = [event for event in await follower.finish() if event.terminal]
        assert [(event.phase, event.payload["outcome"]) for event in terminal] == [("end", "cancelled")]

    assert [request.last_user_text for request in model.requests_of(session)] == [f"active [s:{session}]"]
    ends = [row for row in await shared_service.audit(sessionKey=session) if row["action"] == "run.end"]
    assert [row["runId"] for row in reversed(ends)] == [*queued, active]
    assert {row["status"] for row in ends} == {"cancelled"}
    for run_id in queued:
        assert (await shared_service.record(run_id))["startedAt"] is None
    await check_case(shared_service, [active, *queued], sessions=[session])
    await until_quiet(shared_service)


async def test_a_session_abort_with_nothing_to_stop_stops_nothing(shared_service: Service) -> None:
    """ABORT-05"""
    session = "stop-nothing"
    run_id = await shared_service.run(f"hello [s:{session}]", session)
    before = await shared_service.ended(run_id)
    assert (await shared_service.abort_session(session))["runs"] == []
    assert await shared_service.record(run_id) == before
    await check_case(shared_service, [run_id], sessions=[session])
