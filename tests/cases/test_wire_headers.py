"""What a stream says before its first event: at once, uncompressed, uncached, unbuffered; then each event as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.kit.client import API
from tests.kit.gauges import until_quiet
from tests.kit.model_server import done, finish, hold, text
from tests.kit.raw import exchange, exchanges, head
from tests.kit.rules import check_case
from tests.kit.service import Service
from tests.kit.sse import check_stream

ENCODINGS = ["gzip", "gzip, deflate, br, zstd", "br;q=1.0, *;q=0.5", "identity;q=0, gzip", "*"]


@pytest.fixture(autouse=True)
async def _comes_to_rest(shared_service: Service) -> AsyncIterator[None]:
    """Whatever a test did, no stream is left open and nothing executes (rule R7)."""
    yield
    await until_quiet(shared_service)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("by_post", [False, True], ids=["get", "post"])
async def test_headers_and_events_come_at_once_and_uncompressed(
    shared_service: Service, encoding: str, by_post: bool
) -> None:
    """While the model has not said a word, and each word before the model says the next. WIRE-07"""
    one, model = shared_service, shared_service.model
    words = ["one ", "two ", "three"]
    steps = [step for n, word in enumerate(words) for step in (hold(f"before-{n}"), text(word))]
    model.on("word by word", [*steps, hold("before-end"), finish(), done()])
    headers = {"accept-encoding": encoding}
    if by_post:
        stream = await one.post_stream("word by word", "headers", headers=headers)
        run_id = str((await stream.next_event()).payload["runId"])
    else:
        run_id = await one.run("word by word", "headers")
        await model.until_held("before-0")
        stream = await one.stream(run_id, headers=headers)
        assert (await stream.next_event()).event == "ready"
    assert stream.status == 200 and "".join(check_stream(stream.events, ended=False).texts) == ""
    assert stream.headers["content-type"].split(";")[0] == "text/event-stream"
    assert {part.strip() for part in stream.headers["cache-control"].split(",")} >= {"no-store", "no-transform"}
    assert stream.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in stream.headers and "content-length" not in stream.headers
    for number, word in enumerate(words):
        await model.until_held(f"before-{number}")
        model.release(f"before-{number}")
        await stream.until(lambda event, word=word: event.payload.get("delta") == word)
        await model.until_held(f"before-{number + 1}" if number < 2 else "before-end")
    model.release("before-end")
    assert check_stream(await stream.collect_until_done()).texts == ["".join(words)]
    assert await stream.expect_end() == [] and stream.violations == []
    stream.close()
    for number in range(3):
        model.rearm(f"before-{number}")
    model.rearm("before-end")
    await check_case(one, [run_id], sessions=["headers"])


async def test_answers_that_are_no_streams_are_served_for_any_encoding(shared_service: Service) -> None:
    for encoding in (*ENCODINGS, "identity;q=0", "nosuch"):
        request = head("GET", f"{API}/runs", [("Accept-Encoding", encoding)])
        answer = await exchange(shared_service.address, request)
        assert answer.status == 200 and "content-encoding" not in answer.headers, encoding


async def test_a_stream_is_one_answer_of_one_connection(shared_service: Service) -> None:
    """After its end the same connection serves the next request."""
    run_id = await shared_service.run("x", "headers-again")
    await shared_service.ended(run_id)
    path = f"{API}/runs/{run_id}/events"
    twice = [head("GET", path, [("Accept", "text/event-stream")]), head("GET", f"{API}/runs/{run_id}")]
    first, second = await exchanges(shared_service.address, twice)
    assert first.status == 200 and first.headers.get("connection", "keep-alive") == "keep-alive"
    last = (await shared_service.record(run_id))["lastSeq"]
    assert second.status == 200 and second.body["lastSeq"] == last
    for query in (f"?after={last + 1}", f"?after={last + 1}&streams=tool", f"?after={last + 1}&format=message"):
        answer = await exchange(shared_service.address, head("GET", path + query))
        assert answer.status == 204 and answer.headers.get("content-length", "0") == "0"
