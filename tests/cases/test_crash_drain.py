"""A stop whose time runs out: the process goes all the same, and what it leaves behind is true and can be resumed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.kit.gauges import until_quiet
from tests.kit.invariants import check_at_rest, check_invariants
from tests.kit.model_server import ModelServer, Reply, hold, reply_text, role, text
from tests.kit.rules import check_case, reply_texts
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import Stream, check_stream

LIMIT_S = 2.0
HALF: Reply = [role(), text("half of it"), hold("never")]
WHOLE = reply_text("the whole answer")


@pytest.mark.parametrize("killed", [False, True], ids=["to-its-limit", "killed-within"])
async def test_a_drain_that_cannot_finish_marks_what_executes_and_refuses_what_is_new(
    service: ServiceFactory, model: ModelServer, killed: bool
) -> None:
    """CRASH-03"""
    limit = {"server.drain_seconds": 600 if killed else LIMIT_S}
    services = {resume: service({**limit, "recovery.resume": resume}) for resume in (True, False)}
    await asyncio.gather(*(one.up() for one in services.values()))
    await asyncio.gather(*(_drain(one, resume, killed) for resume, one in services.items()))


async def _drain(one: Service, resume: bool, killed: bool) -> None:
    session = "resumed" if resume else "ended"
    one.model.on(f"endless [s:{session}]", HALF, WHOLE)
    active = await one.run(f"endless [s:{session}]", session, f"key-{session}")
    queued = await one.run(f"queued [s:{session}]", session)
    stream = await one.stream(active)
    await stream.until(lambda event: event.payload.get("delta") == "half of it", 30)
    waiting = asyncio.create_task(one.wait(active, 300_000))

    one.terminate()
    await _refused(one, session)
    again = await one.post(f"endless [s:{session}]", session, f"key-{session}")
    assert (again.status, again.run_id) == (202, active), "a repeated key is no new run"
    if killed:
        one.kill()
        waiting.cancel()
    else:
        assert await one.until_exit(5 * (LIMIT_S + 2)) == 0
        await _told_at_the_limit(one, stream, waiting, active, resume)
    check_invariants(one, accepted=[active, queued])
    assert one.query("SELECT count(*) AS n FROM run") == [{"n": 2}], "a refused post left something"

    await one.up()
    record = await one.ended(active)
    if resume:
        assert (record["status"], record["attempt"], reply_texts(record)) == ("succeeded", 2, ["the whole answer"])
    else:
        assert (record["status"], record["error"]["code"]) == ("failed", "interrupted")
    assert (await one.ended(queued))["status"] == "succeeded"
    rest = await one.stream(active, last_event_id=stream.last_id)
    if rest.status == 200:
        await rest.collect_until_done()
    else:
        assert rest.status == 204 and stream.done is not None
    check_stream([*stream.events, *rest.events])
    rest.close()
    await check_case(one, [active, queued], sessions=[session])
    check_at_rest(one, accepted=[active, queued])
    await until_quiet(one)


async def test_an_abort_during_the_drain_ends_the_run_for_good(service: ServiceFactory, model: ModelServer) -> None:
    """CRASH-05, in one process"""
    model.on("endless", HALF)
    async with service({"server.drain_seconds": 600}) as one:
        active = await one.run("endless [s:a]", "a")
        queued = await one.run("queued [s:a]", "a")
        follower = one.follow(active).start()
        await follower.until(lambda event: event.payload.get("delta") == "half of it", 30)
        one.terminate()
        await until_quiet(one, open_streams=1, runs_executing=1, draining=1)
        assert (await one.abort(active))["abortRequestedAt"] is not None
        assert check_stream(await follower.finish()).outcome == "cancelled"
        assert await one.until_exit(60) == 0, "nothing executes any more, so nothing is waited for"
        stored = {row["id"]: row["status"] for row in one.query("SELECT id, status FROM run")}
        assert stored == {active: "cancelled", queued: "queued"}
        check_invariants(one, accepted=[active, queued])
        assert len(model.requests) == 1


async def _refused(one: Service, session: str) -> None:
    """Once the service says that it drains, new runs are refused with a hint when to come back."""
    await until_quiet(one, open_streams=1, runs_executing=1, draining=1)
    ready = await one.request("GET", "/readyz")
    assert (ready.status, ready.body["reason"]) == (503, "draining")
    refused = await one.post("too late", session, f"late-{session}")
    assert (refused.status, refused.code, refused.body["retryable"]) == (503, "draining", True)
    assert int(refused.headers["retry-after"]) > 0


async def _told_at_the_limit(
    one: Service, stream: Stream, waiting: asyncio.Task[dict[str, Any]], active: str, resume: bool
) -> None:
    """What a reader and a waiter got before the process went, and how the run stands in the database it left."""
    await stream.expect_end(10)
    waited = await waiting
    (row,) = one.query("SELECT status, outcome FROM run WHERE id = ?", active)
    assert stream.finished, "the stream was cut off"
    if resume:
        last = stream.events[-1]
        assert (last.stream, last.retry is not None and last.retry >= 1000) == ("shutdown", True)
        assert not any(event.terminal for event in stream.events)
        assert (waited["status"], waited["waitExpired"], waited["reason"]) == ("timeout", True, "draining")
        assert row["status"] == "recovering"
    else:
        assert check_stream(stream.events).outcome == "interrupted"
        assert (waited["status"], waited["error"]["code"]) == ("error", "interrupted")
        assert (row["status"], row["outcome"]) == ("failed", "interrupted")
