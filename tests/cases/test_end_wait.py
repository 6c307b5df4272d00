"""Waiting tells of a run and does nothing to it: an expired wait is no end, a late one says what an early one said."""

from __future__ import annotations

import asyncio

from tests.kit.client import API
from tests.kit.gauges import until_quiet
from tests.kit.model_server import done, finish, hold, role, text
from tests.kit.rules import check_case, reply_texts
from tests.kit.service import Service


async def test_waits_that_expire_change_nothing_and_the_others_agree_on_the_end(shared_service: Service) -> None:
    """END-06"""
    session, model = "waits", shared_service.model
    model.on(f"[s:{session}]", [role(), text("some words"), hold("waits"), text(" more"), finish(), done()])
    run_id = await shared_service.run(f"hello [s:{session}]", session)
    await model.until_held("waits")
    running = await shared_service.record(run_id)
    assert (running["status"], running["endedAt"]) == ("running", None)
    long = asyncio.create_task(shared_service.wait(run_id, 60_000))

    short = await asyncio.gather(*(shared_service.wait(run_id, 300) for _ in range(20)))
    assert short == [{"runId": run_id, "status": "timeout", "waitExpired": True}] * 20
    now = await shared_service.record(run_id)
    assert {**now, "lastSeq": 0} == {**running, "lastSeq": 0}, "an expired wait changed the run"
    assert not long.done() and not model.requests_of(session)[0].over

    model.release("waits")
    waited, late = await long, await shared_service.wait(run_id, 0)
    assert waited == late
    assert (late["status"], late["waitExpired"], reply_texts(late)) == ("ok", False, ["some words more"])
    record = await shared_service.record(run_id)
    assert (late["startedAt"], late["endedAt"]) == (record["startedAt"], record["endedAt"])
    assert late["startedAt"] == running["startedAt"]
    assert late["reply"] == record["reply"]
    await check_case(shared_service, [run_id], sessions=[session])
    await until_quiet(shared_service)


async def test_many_waiters_of_one_run_all_learn_of_its_end(shared_service: Service) -> None:
    """END-06"""
    session, model = "many-waits", shared_service.model
    model.on(f"first [s:{session}]", [role(), text("some words"), hold("many"), finish(), done()])
    run_ids = [await shared_service.run(f"{name} [s:{session}]", session) for name in ("first", "second")]
    await model.until_held("many")
    waits = [asyncio.create_task(shared_service.wait(run_id)) for run_id in run_ids for _ in range(40)]
    assert (await shared_service.wait(run_ids[1], 100))["waitExpired"] is True
    assert not any(wait.done() for wait in waits)
    model.release("many")
    answers = await asyncio.gather(*waits)
    assert all(answer["status"] == "ok" and answer["waitExpired"] is False for answer in answers), answers
    for run_id, listed in zip(run_ids, (answers[:40], answers[40:]), strict=True):
        assert all(answer == listed[0] and answer["runId"] == run_id for answer in listed)
    await check_case(shared_service, run_ids, sessions=[session])
    await until_quiet(shared_service)


async def test_a_wait_for_no_run_or_for_no_sensible_time_is_refused(shared_service: Service) -> None:
    """END-06"""
    unknown = await shared_service.request("GET", f"{API}/runs/00000000-0000-7000-8000-000000000000/wait")
    assert (unknown.status, unknown.code) == (404, "run-not-found")
    run_id = await shared_service.run("hello", "waits-refused")
    for wrong in ("-1", "600001", "soon", ""):
        answer = await shared_service.request("GET", f"{API}/runs/{run_id}/wait", timeoutMs=wrong)
        assert (answer.status, answer.code) == (422, "validation-failed"), wrong
    await check_case(shared_service, [run_id])
