"""After a restart, clean or hard, every run that was accepted is worked on or has ended, and its session goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.kit.gauges import until_quiet
from tests.kit.invariants import check_at_rest, check_invariants
from tests.kit.model_server import ModelServer, Reply, hold, reply_text, role, text
from tests.kit.rules import check_case, reply_texts
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import check_stream

HALF: Reply = [role(), text("half of it"), hold("never")]
WHOLE = reply_text("the whole answer")

WAYS = pytest.mark.parametrize("hard", [False, True], ids=["SIGTERM", "SIGKILL"])

Case = Callable[[Service, bool, bool], Awaitable[None]]


async def resumed_and_ended(service: ServiceFactory, case: Case, *, hard: bool, **settings: Any) -> None:
    """The case with `recovery.resume` on and off, side by side: two services share the start-up time."""
    shared = {"server.drain_seconds": 0, **{key.replace("__", "."): value for key, value in settings.items()}}
    services = {resume: service({**shared, "recovery.resume": resume}) for resume in (True, False)}
    await asyncio.gather(*(one.up() for one in services.values()))
    await asyncio.gather(*(case(one, resume, hard) for resume, one in services.items()))


@WAYS
async def test_a_run_in_mid_stream_goes_on_or_says_that_it_was_interrupted_and_its_session_is_free(
    service: ServiceFactory, hard: bool
) -> None:
    """CRASH-01"""
    await resumed_and_ended(service, _mid_stream, hard=hard)


async def _mid_stream(one: Service, resume: bool, hard: bool) -> None:
    session = "resumed" if resume else "ended"
    one.model.on(f"first [s:{session}]", HALF, WHOLE)
    first = await one.run(f"first [s:{session}]", session)
    follower = one.follow(first).start()
    await follower.until(lambda event: event.payload.get("delta") == "half of it", 30)
    second = await one.run(f"second [s:{session}]", session)

    await one.restart(hard=hard)
    check_invariants(one, accepted=[first, second])
    third = await one.run(f"third [s:{session}]", session)
    records = [await one.ended(run_id) for run_id in (first, second, third)]
    checked = check_stream(await follower.finish())
    assert follower.violations == []
    old = records[0]
    if resume:
        begun = [event for event in checked.events if event.phase == "resumed"]
        assert [event.payload["attempt"] for event in begun] == [2]
        assert (old["status"], old["attempt"], reply_texts(old)) == ("succeeded", 2, ["the whole answer"])
        assert checked.texts == ["the whole answer"], "what came of the first attempt was not taken back"
        assert bool(checked.not_kept) is hard, "a clean stop skips no numbers, a kill names those it may have skipped"
    else:
        assert (old["status"], old["error"]["code"], old["attempt"]) == ("failed", "interrupted", 1)
        assert (checked.terminal is not None and checked.terminal.phase) == "error"
        assert reply_texts(old) in ([], ["half of it"])
    asked = one.model.requests_with(f"first [s:{session}]")
    assert len(asked) == (2 if resume else 1)
    assert all(b"half of it" not in request.body_bytes for request in asked)

    assert [record["status"] for record in records[1:]] == ["succeeded"] * 2
    assert old["endedAt"] <= records[1]["startedAt"] and records[1]["endedAt"] <= records[2]["startedAt"]
    await check_case(one, [first, second, third], sessions=[session])
    check_at_rest(one, accepted=[first, second, third])
    await until_quiet(one)


@WAYS
async def test_every_executing_and_queued_run_of_many_sessions_comes_to_its_end_after_a_restart(
    service: ServiceFactory, hard: bool
) -> None:
    """CRASH-02"""
    await resumed_and_ended(service, _many_sessions, hard=hard, agents__defaults__max_concurrent=10)


async def _many_sessions(one: Service, resume: bool, hard: bool) -> None:
    model = one.model
    sessions = [f"{'resumed' if resume else 'ended'}-{number}" for number in range(10)]
    for name in sessions:
        model.on(f"active [s:{name}]", HALF, WHOLE)
    active = [await one.run(f"active [s:{name}]", name) for name in sessions]
    queued = [await one.run(f"queued [s:{name}]", name) for name in sessions]
    await model.until(lambda: all(model.requests_of(name) for name in sessions), "a request of each session", 30)

    await one.restart(hard=hard)
    waits = await asyncio.gather(*(one.wait(run_id) for run_id in (*active, *queued)))
    assert [waited["waitExpired"] for waited in waits] == [False] * 20
    assert await one.runs(status="running,queued") == []
    for run_id in active:
        record = await one.record(run_id)
        if resume:
            assert (record["status"], record["attempt"]) == ("succeeded", 2), record
        else:
            assert (record["status"], record["error"]["code"]) == ("failed", "interrupted"), record
    for run_id in queued:
        record = await one.record(run_id)
        assert (record["status"], record["attempt"]) == ("succeeded", 1), record
    ends = [row["runId"] for row in await one.audit(kind="agent_run") if row["action"] == "run.end"]
    assert sorted(ends) == sorted([*active, *queued])
    await check_case(one, [*active, *queued], sessions=sessions[:1])
    check_at_rest(one, accepted=[*active, *queued])
    await until_quiet(one)


async def test_a_run_that_waits_to_go_on_after_a_kill_can_be_withdrawn(
    service: ServiceFactory, model: ModelServer
) -> None:
    """CRASH-02, LANE-08"""
    model.on("active", HALF)
    one = service({"agents.defaults.max_concurrent": 2})
    await one.up()
    run_ids = [await one.run(f"active [s:{name}]", name) for name in ("a", "b")]
    await model.until_requests(2)
    one.kill()
    one.settings["agents.defaults.max_concurrent"] = 1
    await one.up()
    await model.until_requests(3)
    back = model.requests[2].session
    there, waiting = run_ids if back == "a" else reversed(run_ids)
    record = await one.record(waiting)
    assert (record["status"], record["receipt"]["state"], record["attempt"]) == ("running", "recovering", 1)
    assert (await one.abort(waiting))["status"] == "cancelled"
    assert (await one.record(waiting))["status"] == "cancelled"
    await one.abort(there)
    await check_case(one, run_ids, sessions=["a", "b"])
    assert [request.session for request in model.requests_with("active")].count(back) == 2
    assert len(model.requests_with("active")) == 3, "the withdrawn run was executed again"
    check_at_rest(one, accepted=run_ids)
    await until_quiet(one)
