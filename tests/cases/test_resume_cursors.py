"""Strange cursors: refused, or answered from a known place; by header and by parameter alike, on GET and on POST."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest

from tests.kit.client import API
from tests.kit.gauges import until_quiet
from tests.kit.model_server import done, finish, hold, text
from tests.kit.problems import check_problem, nothing_stored
from tests.kit.raw import exchange, head, json_request
from tests.kit.rules import check_case
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import check_stream
from tests.kit.story import behind, story

SSE = ("Accept", "text/event-stream")
NOWHERE = "0198c0de-0000-7000-8000-000000000001"
MALFORMED = [
    *("-1", "-0", "+1", "abc", "1.0", "1e3", "0x1", "1 2", "1,2", "1;2", "null", "Start", "TAIL", "1" * 16, "9" * 30),
    *(NOWHERE, "1_000", "٣", "\uff11", "²", "%31", "\\0", '"1"', "1-0", "0-0", "0.0.0", "*", "$", "../1", "x" * 20_000),
]
ABOVE = ["999999999999999", "1000000", "5000"]


@pytest.fixture(autouse=True)
async def _comes_to_rest(shared_service: Service) -> AsyncIterator[None]:
    """Whatever a test did, no stream is left open and nothing executes (rule R7)."""
    yield
    await until_quiet(shared_service)


def _written(cursor: str) -> str:
    return "".join(
        char if re.match(r"[\w.]", char, re.ASCII) else "".join(f"%{b:02X}" for b in char.encode()) for char in cursor
    )


@pytest.fixture
async def ended(shared_service: Service) -> str:
    """An ended run of five words."""
    run_id = await shared_service.run("cursors of an ended run", "cursors", "cursors-ended")
    await shared_service.ended(run_id)
    return run_id


@pytest.mark.parametrize("cursor", MALFORMED, ids=lambda cursor: ascii(cursor)[:20])
async def test_a_malformed_cursor_is_refused(shared_service: Service, ended: str, cursor: str) -> None:
    """RESUME-09"""
    one, path = shared_service, f"{API}/runs/{ended}/events"
    with nothing_stored(one):
        by_header = await exchange(one.address, head("GET", path, [SSE, ("Last-Event-ID", cursor.encode())]))
        check_problem(by_header, 400, "bad-request", header="Last-Event-ID")
        by_parameter = await exchange(one.address, head("GET", f"{path}?after={_written(cursor)}", [SSE]))
        check_problem(by_parameter, 400, "bad-request", parameter="after")
        for key in ("cursors-ended", "cursors-new"):
            headers = [SSE, ("Last-Event-ID", cursor.encode()), ("Idempotency-Key", key)]
            body = {"message": "cursors of an ended run", "sessionKey": "cursors"}
            posted = await exchange(one.address, json_request("POST", f"{API}/runs", body, headers))
            check_problem(posted, 400, "bad-request", header="Last-Event-ID")


async def test_a_cursor_of_a_megabyte_is_refused(shared_service: Service, ended: str) -> None:
    """Whoever refuses it: the answer is a 4xx, at once, and the service lives."""
    one, huge = shared_service, b"1" * 1_000_000
    path = f"{API}/runs/{ended}/events"
    for request in (
        head("GET", path, [SSE, ("Last-Event-ID", huge)]),
        head("GET", f"{path}?after={huge.decode()}", [SSE]),
        json_request("POST", f"{API}/runs", {"message": "x"}, [SSE, ("Last-Event-ID", huge), ("Idempotency-Key", "k")]),
    ):
        with nothing_stored(one):
            answer = await exchange(one.address, request)
        assert 400 <= answer.status < 500, answer
        if answer.body is not None:
            assert len(str(answer.body)) < 2000, "the answer repeats the cursor"
    assert (await one.request("GET", "/healthz")).status == 200


@pytest.mark.parametrize("cursor", ["", " ", "0", "00", "start"], ids=repr)
async def test_no_cursor_in_any_form_begins_at_the_beginning(shared_service: Service, ended: str, cursor: str) -> None:
    async with await shared_service.stream(ended) as stream:
        whole = story(await stream.collect_until_done())
    for query in ({"after": cursor}, {"last_event_id": cursor}):
        if query == {"after": " "}:
            continue
        async with await shared_service.stream(ended, **query) as stream:
            events = await stream.collect_until_done()
        check_stream(events)
        assert story(events) == whole


async def test_zeros_in_front_change_no_cursor(shared_service: Service, ended: str) -> None:
    for query in ({"after": "003"}, {"last_event_id": "003"}):
        async with await shared_service.stream(ended, **query) as stream:
            check_stream(await stream.collect_until_done(), after=3)


async def test_the_header_goes_before_the_parameter(shared_service: Service, ended: str) -> None:
    async with await shared_service.stream(ended, after=1, last_event_id=3) as stream:
        events = await stream.collect_until_done()
    assert events[0].id == "3"
    check_stream(events, after=3)
    async with await shared_service.stream(ended, after="garbage", last_event_id=3) as stream:
        check_stream(await stream.collect_until_done(), after=3)
    async with await shared_service.stream(ended, after=4, last_event_id="") as stream:
        check_stream(await stream.collect_until_done(), after=4)


async def test_two_last_event_ids_are_refused(shared_service: Service, ended: str) -> None:
    twice = [SSE, ("Last-Event-ID", "1"), ("Last-Event-ID", "2")]
    answer = await exchange(shared_service.address, head("GET", f"{API}/runs/{ended}/events", twice))
    check_problem(answer, 400, "bad-request", header="Last-Event-ID")
    body = {"message": "cursors of an ended run", "sessionKey": "cursors"}
    request = json_request("POST", f"{API}/runs", body, [*twice, ("Idempotency-Key", "cursors-ended")])
    check_problem(await exchange(shared_service.address, request), 400, "bad-request", header="Last-Event-ID")


@pytest.mark.parametrize("cursor", ABOVE)
async def test_a_cursor_that_was_never_given_out_is_a_gap_and_a_snapshot(
    shared_service: Service, ended: str, cursor: str
) -> None:
    """As after a restored backup: a browser would never come back after a 400."""
    one = shared_service
    record = await one.record(ended)
    body = {"message": "cursors of an ended run", "session": "cursors", "key": "cursors-ended"}
    streams = [
        await one.stream(ended, after=cursor),
        await one.stream(ended, last_event_id=cursor),
        await one.post_stream(**body, last_event_id=cursor),
    ]
    for stream in streams:
        async with stream:
            events = await stream.collect_until_done()
            assert await stream.expect_end() == [] and stream.violations == []
        assert [event.event for event in events] in (
            ["ready", "gap", "snapshot", "done"],
            ["accepted", "gap", "snapshot", "done"],
        )
        last = str(record["lastSeq"])
        assert [event.id for event in events] == [last, last, last, str(record["lastSeq"] + 1)]
        gap, snapshot, end = (event.payload for event in events[1:])
        assert gap["oldestSeq"] == 1 and gap["reason"]
        run = snapshot["runs"][0]
        assert len(snapshot["runs"]) == 1 and snapshot["sessionId"] == record["sessionId"]
        assert (run["runId"], run["status"], run["lastSeq"]) == (ended, "succeeded", record["lastSeq"])
        assert [(message["text"], message["ended"]) for message in run["messages"]] == [
            ("cursors of an ended run", True)
        ]
        assert run["input"]["parts"] == [{"type": "text", "text": "cursors of an ended run"}]
        assert end == await one.wait(ended)
        check_stream(events, after=record["lastSeq"], ended=False)


async def test_a_snapshot_of_a_live_run_joins_what_comes(shared_service: Service) -> None:
    """Text before it stands in the snapshot, text after it comes as deltas, once each."""
    one = shared_service
    one.model.on("gap-and-go-on", [text("before "), hold("gap"), text("after"), finish(), done()])
    run_id = await one.run("gap-and-go-on", "gap-live")
    guide = await one.stream(run_id)
    await guide.until(lambda event: event.payload.get("delta") == "before ")
    stream = await one.stream(run_id, last_event_id=900_000)
    snapshot = await stream.until(lambda event: event.event == "snapshot")
    run = snapshot.payload["runs"][0]
    assert run["status"] == "running"
    assert [(message["text"], message["ended"]) for message in run["messages"]] in ([("before ", False)], [])
    one.model.release("gap")
    events = await stream.collect_until_done()
    whole = await guide.collect_until_done()
    cursor = int(snapshot.id or "-1")
    after = [event for event in events if event.seq is not None]
    assert [event.raw for event in after] == [event.raw for event in behind(whole, cursor)]
    held = run["messages"][0]["text"] if run["messages"] else ""
    assert held + "".join(event.payload.get("delta", "") for event in after) == "before after"
    check_stream(events, after=cursor)
    await check_case(one, [run_id], sessions=["gap-live"])


async def test_a_place_in_another_run_brings_nothing_of_it(service: ServiceFactory) -> None:
    """A number is a place in the run that was asked for, whoever it was given to."""
    async with service() as one:
        long_run, short = await one.run("word " * 40, "other-1"), await one.run("short", "other-2")
        records = [await one.ended(run_id) for run_id in (long_run, short)]
        foreign = min(record["lastSeq"] for record in records) - 1
        async with await one.stream(long_run, last_event_id=foreign) as stream:
            events = await stream.collect_until_done()
        assert {event.run_id for event in events} == {long_run}
        check_stream(events, after=foreign)
        async with await one.stream(short, last_event_id=records[0]["lastSeq"] + 5) as stream:
            events = await stream.collect_until_done()
        assert {event.run_id for event in events} == {short} and "word" not in str([event.raw for event in events])
        await check_case(one, [long_run, short])


@pytest.mark.parametrize("streams", ["", "nosuch", "lifecycle,nosuch", "Lifecycle", "lifecycle tool", "ready", "done"])
async def test_a_selection_that_does_not_exist_is_refused(shared_service: Service, ended: str, streams: str) -> None:
    answer = await shared_service.request("GET", f"{API}/runs/{ended}/events", streams=streams)
    if streams == "":
        assert answer.status in (200, 422)
    else:
        check_problem(answer, 422, "validation-failed", parameter="streams")


async def test_streams_and_forms_of_a_later_build_are_told_as_such(shared_service: Service, ended: str) -> None:
    path = f"{API}/runs/{ended}/events"
    for streams in ("chat", "compaction", "approval", "lifecycle,chat"):
        answer = await shared_service.request("GET", path, streams=streams)
        check_problem(answer, 422, "not-available", parameter="streams")
    for form in ("", "json", "NAMED"):
        check_problem(
            await shared_service.request("GET", path, format=form), 422, "validation-failed", parameter="format"
        )
