"""The three forms of an accept answer, and the wait call: what was asked for, what was served, what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.client import API
from tests.kit.gauges import until_quiet
from tests.kit.model_server import error, hold, reply_text
from tests.kit.problems import check_problem, nothing_stored
from tests.kit.raw import exchange, json_request
from tests.kit.rules import check_run, reply_texts
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import check_stream

RUNS = f"{API}/runs"
NOWHERE = "0198c0de-0000-7000-8000-000000000001"
SSE = "text/event-stream"

AS_JSON = [
    *(None, "", "*/*", "application/json", "application/*", "APPLICATION/JSON", f"application/json, {SSE}"),
    *(f"{SSE};q=0.5, application/json", f"{SSE};q=0, */*", "application/json; charset=utf-8", "text/html, */*;q=0.1"),
    f"application/json;q=0.9, {SSE};q=0.8",
]
AS_STREAM = [
    *(SSE, "Text/Event-Stream", "text/*", f"{SSE}, application/json", f"application/xml, {SSE};q=0.1"),
    *(f"{SSE}, */*", f"application/json;q=0.1, {SSE};q=0.2", f"{SSE}; charset=utf-8", f" {SSE} ,"),
]
AS_NOTHING = [
    *("text/html", "application/xml", "image/*", "x", "application/json;q=0", f"{SSE};q=0", f"{SSE};q=0.0"),
    *("text/event-streams", "application/problem+json", f"application/json;q=0, {SSE};q=0"),
]


@pytest.fixture(autouse=True)
async def _comes_to_rest(shared_service: Service) -> AsyncIterator[None]:
    """Whatever a test did, no stream is left open and nothing executes (rule R7)."""
    yield
    await until_quiet(shared_service)


@pytest.mark.parametrize("accept", AS_JSON, ids=repr)
async def test_the_answer_is_json_unless_a_stream_is_preferred(shared_service: Service, accept: str | None) -> None:
    headers = [] if accept is None else [("Accept", accept)]
    request = json_request("POST", RUNS, {"message": "x", "sessionKey": "accept-json"}, headers)
    answer = await exchange(shared_service.address, request)
    assert answer.status == 202 and answer.headers["content-type"] == "application/json", answer
    await shared_service.ended(answer.run_id)


@pytest.mark.parametrize("accept", AS_STREAM, ids=repr)
async def test_the_answer_is_the_stream_where_that_is_preferred(shared_service: Service, accept: str) -> None:
    async with await shared_service.post_stream("x", "accept-stream", headers={"accept": accept}) as stream:
        assert stream.status == 200 and stream.headers["content-type"].startswith(SSE), stream.headers
        check_stream(await stream.collect_until_done())


@pytest.mark.parametrize("accept", AS_NOTHING, ids=repr)
async def test_what_cannot_be_served_is_not_accepted(shared_service: Service, accept: str) -> None:
    with nothing_stored(shared_service):
        answer = await shared_service.post("x", headers={"accept": accept})
    check_problem(answer, 406, "not-acceptable", header="Accept")


async def test_a_stream_is_served_as_a_stream_only(shared_service: Service) -> None:
    run_id = await shared_service.run("x", "accept-events")
    await shared_service.ended(run_id)
    for accept in ("*/*", "text/*", SSE, f"application/json, {SSE};q=0.1"):
        async with await shared_service.stream(run_id, headers={"accept": accept}) as stream:
            assert stream.status == 200, accept
            check_stream(await stream.collect_until_done())
    for accept in ("application/json", "text/html", f"{SSE};q=0"):
        answer = await shared_service.request("GET", f"{RUNS}/{run_id}/events", headers={"accept": accept})
        check_problem(answer, 406, "not-acceptable", header="Accept")


async def test_the_accept_answer_says_where_the_run_is(shared_service: Service) -> None:
    answer = await shared_service.post("x", "accept-answer")
    body: dict[str, Any] = answer.body
    assert body.keys() == {"runId", "acceptedAt", "sessionKey", "sessionId", "status", "receipt", "links"}
    assert answer.headers["location"] == body["links"]["self"] == f"{RUNS}/{body['runId']}"
    assert body["links"].keys() == {"self", "events", "wait", "abort"}
    assert body["status"] == "queued" and body["receipt"]["state"] == "queued"
    record = await shared_service.ended(answer.run_id)
    assert (record["acceptedAt"], record["sessionId"]) == (body["acceptedAt"], body["sessionId"])
    for name in ("self", "wait"):
        assert (await shared_service.get(body["links"][name]))["runId"] == answer.run_id
    stream = await shared_service.open_stream(body["links"]["events"])
    async with stream:
        check_stream(await stream.collect_until_done())
    assert (await shared_service.request("POST", body["links"]["abort"])).body["status"] == "succeeded"


PREFER_OF_AN_ENDING_RUN = [
    *(("wait=20", "wait=20"), ("wait=50", "wait=50"), ("wait=51", "wait=50"), ("wait=999999999999", "wait=50")),
    *(("WAIT=5", "wait=5"), ('wait="5"', "wait=5"), ("respond-async, wait=5", "wait=5"), ("wait = 5", "wait=5")),
    ("wait=5; x=y", "wait=5"),
]


@pytest.mark.parametrize(("prefer", "applied"), PREFER_OF_AN_ENDING_RUN)
async def test_a_preferred_wait_gives_the_run_when_it_ends(shared_service: Service, prefer: str, applied: str) -> None:
    answer = await shared_service.post("x", "prefer-wait", headers={"prefer": prefer})
    assert answer.status == 200 and answer.headers["preference-applied"] == applied, answer
    assert answer.headers["location"] == f"{RUNS}/{answer.run_id}"
    assert answer.body == await shared_service.record(answer.run_id)
    assert answer.body["status"] == "succeeded" and reply_texts(answer.body) == ["x"]


async def test_a_failed_run_is_given_alike(shared_service: Service) -> None:
    shared_service.model.on("fail-at-once", error(400, "no"))
    answer = await shared_service.post("fail-at-once", "prefer-failed", headers={"prefer": "wait=20"})
    assert answer.status == 200 and answer.body["status"] == "failed" and answer.body["error"]["code"], answer
    await check_run(shared_service, answer.run_id)


async def test_a_preferred_wait_that_ends_first_is_202(shared_service: Service) -> None:
    shared_service.model.on("hold-for-prefer", [hold("prefer"), *reply_text("at last")])
    run_ids = []
    for seconds in (0, 1):
        answer = await shared_service.post("hold-for-prefer", headers={"prefer": f"wait={seconds}"}, session="prefer-0")
        assert answer.status == 202 and answer.headers["preference-applied"] == f"wait={seconds}", answer
        assert answer.body["status"] == "queued"
        run_ids.append(answer.run_id)
    shared_service.model.release("prefer")
    for run_id in run_ids:
        assert (await shared_service.ended(run_id))["status"] == "succeeded"


@pytest.mark.parametrize(
    "prefer",
    ["", "wait", "wait=", "wait=abc", "wait=-1", "wait=1.5", "waits=5", "respond-async", "wait=٣", ";,=", "=5"],
)
async def test_a_preference_that_is_not_understood_is_ignored(shared_service: Service, prefer: str) -> None:
    shared_service.model.on("hold-for-garbage", [hold("garbage"), *reply_text("x")])
    request = json_request(
        "POST", RUNS, {"message": "hold-for-garbage", "sessionKey": "prefer-garbage"}, [("Prefer", prefer.encode())]
    )
    answer = await exchange(shared_service.address, request)
    assert answer.status == 202 and "preference-applied" not in answer.headers
    shared_service.model.release("garbage")
    await shared_service.ended(answer.run_id)


async def test_a_post_as_a_stream_begins_with_its_acceptance(shared_service: Service) -> None:
    async with await shared_service.post_stream("x", "post-stream", "post-stream-1") as stream:
        events = await stream.collect_until_done()
        assert await stream.expect_end() == []
    first = events[0]
    assert (first.event, first.id) == ("accepted", "0") and first.retry is not None
    run_id = str(first.payload["runId"])
    assert stream.headers["location"] == f"{RUNS}/{run_id}"
    again = await shared_service.post("x", "post-stream", "post-stream-1")
    assert first.payload == again.body
    check_stream(events)
    await check_run(shared_service, run_id)


async def test_the_repeated_post_goes_on_behind_its_last_event(shared_service: Service) -> None:
    session, key = "post-again", "post-again-1"
    async with await shared_service.post_stream("x", session, key) as stream:
        whole = check_stream(await stream.collect_until_done())
    last = len(whole.events)
    for cursor in range(last + 1):
        async with await shared_service.post_stream("x", session, key, last_event_id=cursor) as stream:
            events = await stream.collect_until_done()
            assert (events[0].event, events[0].id) == ("accepted", str(cursor))
            checked = check_stream(events, after=cursor)
            assert [event.raw for event in checked.events] == [event.raw for event in whole.events[cursor:]]
    async with await shared_service.post_stream("x", session, key, last_event_id=last + 1) as stream:
        assert stream.status == 204 and await stream.body() == b""
    assert len(await shared_service.runs(sessionKey=session)) == 1


async def test_a_last_event_id_without_a_key_is_refused(shared_service: Service) -> None:
    with nothing_stored(shared_service):
        for cursor in ("0", "1", "abc"):
            for accept in (SSE, "application/json"):
                headers = {"accept": accept, "last-event-id": cursor}
                answer = await shared_service.post("x", headers=headers)
                check_problem(answer, 400, "idempotency-key-required", header="Idempotency-Key")


async def test_leaving_the_stream_of_a_post_does_not_stop_the_run(shared_service: Service) -> None:
    shared_service.model.on("hold-and-leave", [hold("leave"), *reply_text("still here")])
    stream = await shared_service.post_stream("hold-and-leave", "post-leave")
    run_id = str((await stream.next_event()).payload["runId"])
    await shared_service.model.until_held("leave")
    stream.abort()
    shared_service.model.release("leave")
    assert reply_texts(await shared_service.ended(run_id)) == ["still here"]
    assert shared_service.model.requests_with("hold-and-leave")[-1].disconnected_at is None


async def test_an_expired_wait_says_nothing_but_that_and_changes_nothing(shared_service: Service) -> None:
    shared_service.model.on("hold-for-wait", [hold("wait"), *reply_text("waited for")])
    run_id = await shared_service.run("hold-for-wait", "wait-expired")
    await shared_service.model.until_held("wait")
    before = await shared_service.record(run_id)
    expired = {"runId": run_id, "status": "timeout", "waitExpired": True}
    short = [shared_service.wait(run_id, timeout_ms) for timeout_ms in (0, 1, 50, 300) for _ in range(3)]
    assert await asyncio.gather(*short) == [expired] * 12
    assert await shared_service.record(run_id) == before
    longer = asyncio.create_task(shared_service.wait(run_id, 60_000))
    shared_service.model.release("wait")
    waited = await longer
    assert (waited["status"], waited["waitExpired"]) == ("ok", False)
    assert await shared_service.wait(run_id, 0) == await shared_service.wait(run_id, 600_000) == waited
    await check_run(shared_service, run_id)


async def test_a_wait_out_of_its_bounds_is_refused(shared_service: Service) -> None:
    run_id = await shared_service.run("x", "wait-bounds")
    await shared_service.ended(run_id)
    for value in ("-1", "600001", "99999999999999999999", "abc", "", "1.5", "null", "1e3"):
        answer = await shared_service.request("GET", f"{RUNS}/{run_id}/wait", timeoutMs=value)
        check_problem(answer, 422, "validation-failed", parameter="timeoutMs")
    for query in ({"timeout": 5}, {"timeoutms": 5}, {"timeoutMs": [5, 6]}):
        answer = await shared_service.request("GET", f"{RUNS}/{run_id}/wait", **query)
        check_problem(answer, 422, "validation-failed", parameter=next(iter(query)))
    check_problem(await shared_service.request("GET", f"{RUNS}/{NOWHERE}/wait", timeoutMs=0), 404, "run-not-found")


async def test_a_draining_service_answers_its_waiters_and_takes_nothing_new(service: ServiceFactory) -> None:
    """Streams still open, only new runs are refused; at the end all are told to come back."""
    async with service({"server.drain_seconds": 60}) as one:
        run_id, waits = await _drain_with_waiters(one)
        headers = {"prefer": "wait=50"}
        for key in (None, "drain-new"):
            for form in ({}, headers, {"accept": SSE}):
                with nothing_stored(one):
                    check_problem(await one.post("x", "drain-other", key, headers=form), 503, "draining")
        late = await one.stream(run_id)
        assert late.status == 200 and (await late.next_event()).event == "ready"
        one.terminate()
        told = {"runId": run_id, "status": "timeout", "waitExpired": True, "reason": "draining"}
        assert await asyncio.gather(*waits) == [told] * 3
        events = await late.collect_until_done()
        assert events[-1].event == "shutdown" and events[-1].payload["reason"] == "draining"
        assert events[-1].retry is not None and 2000 <= events[-1].retry <= 6000
        assert await one.until_exit() == 0
        one.model.release("drain")
        await one.up()
        assert (await one.ended(run_id))["status"] == "succeeded"


async def test_a_draining_service_gives_a_repeated_post_its_answer(service: ServiceFactory) -> None:
    """It is no new run; who reads a run by repeating the post would be locked out of it."""
    async with service({"server.drain_seconds": 60}) as one:
        run_id, waits = await _drain_with_waiters(one)
        headers = {"prefer": "wait=50"}
        preferred = asyncio.create_task(one.post("hold-to-the-end", "drain-wait", "drain-1", headers=headers))
        again = await one.post("hold-to-the-end", "drain-wait", "drain-1")
        assert (again.status, again.body.get("runId")) == (202, run_id), again
        async with await one.post_stream("hold-to-the-end", "drain-wait", "drain-1", last_event_id=1) as stream:
            assert stream.status == 200 and (await stream.next_event()).event == "accepted"
            one.model.release("drain")
            check_stream(await stream.collect_until_done(), after=1)
        assert (await preferred).body["status"] == "succeeded"
        assert {waited["status"] for waited in await asyncio.gather(*waits)} == {"ok"}
        assert await one.until_exit() == 0


async def _drain_with_waiters(one: Service) -> tuple[str, list[asyncio.Task[dict[str, Any]]]]:
    """A run that is held, three who wait for it, and a service that has begun to drain."""
    one.model.on("hold-to-the-end", [hold("drain"), *reply_text("x")])
    run_id = await one.run("hold-to-the-end", "drain-wait", "drain-1")
    await one.model.until_held("drain")
    waits = [asyncio.create_task(one.wait(run_id, 120_000)) for _ in range(3)]
    one.terminate()
    async with asyncio.timeout(30):
        while (ready := await one.request("GET", "/readyz")).status == 200:
            pass
    assert ready.body == {"status": "not-ready", "reason": "draining"}
    return run_id, waits
