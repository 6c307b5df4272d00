"""Idempotency keys: their forms, what counts as the same request, and what is never remembered."""

from __future__ import annotations

import asyncio

import pytest

from tests.kit.client import API
from tests.kit.model_server import hold, reply_text
from tests.kit.problems import check_problem, nothing_stored
from tests.kit.raw import exchange, json_request
from tests.kit.service import Service
from tests.kit.sse import check_stream

RUNS = f"{API}/runs"
KEYED = "Idempotency-Key"


async def test_bare_and_quoted_are_the_same_key(shared_service: Service) -> None:
    body = {"message": "x", "sessionKey": "idem-quoted"}
    answers = [
        await exchange(shared_service.address, json_request("POST", RUNS, body, [(name, value)]))
        for name, value in (
            *((KEYED, "quoted-1"), (KEYED, '"quoted-1"'), (KEYED, '  "quoted-1"  '), (KEYED, "quoted-1 ")),
            *(("idempotency-key", '"quoted-1"'), ("IDEMPOTENCY-KEY", "quoted-1")),
        )
    ]
    assert [answer.status for answer in answers] == [202] * len(answers)
    assert len({answer.run_id for answer in answers}) == 1
    assert [answer.headers.get("idempotent-replayed") for answer in answers] == [None, *["true"] * (len(answers) - 1)]
    other = await shared_service.post("x", "idem-quoted", "QUOTED-1")
    assert other.run_id != answers[0].run_id, "case matters in keys"
    for answer in (answers[0], other):
        await shared_service.ended(answer.run_id)


@pytest.mark.parametrize("key", ["k", "!", "~", "a" * 256, "a,b;c=d", "\\", "'k'", '"' + "b" * 256 + '"', '"a\\"b"'])
async def test_any_visible_ascii_is_a_key(shared_service: Service, key: str) -> None:
    first, again = [await shared_service.post("x", "idem-forms", key) for _ in range(2)]
    assert (first.status, again.status, again.run_id) == (202, 202, first.run_id)
    await shared_service.ended(first.run_id)


BAD_KEYS: list[bytes] = [
    *(b"", b" ", b'""', b'" "', b"a b", b'"a b"', b"a\tb", b"a" * 257, b'"' + b"a" * 257 + b'"', b"a" * 60_000),
    *("é".encode(), "é".encode("latin-1"), b"\x80", "日本".encode()),
]


@pytest.mark.parametrize("key", BAD_KEYS, ids=lambda key: repr(key)[:40])
async def test_what_is_no_key_is_refused(shared_service: Service, key: bytes) -> None:
    with nothing_stored(shared_service):
        for headers in ([], [("Accept", "text/event-stream")]):
            request = json_request("POST", RUNS, {"message": "x"}, [*headers, (KEYED, key)])
            check_problem(await exchange(shared_service.address, request), 400, "bad-request", header=KEYED)


async def test_two_keys_are_refused(shared_service: Service) -> None:
    with nothing_stored(shared_service):
        for one, other in (("a", "b"), ("a", "a"), ("a", "")):
            request = json_request("POST", RUNS, {"message": "x"}, [(KEYED, one), (KEYED, other)])
            check_problem(await exchange(shared_service.address, request), 400, "bad-request", header=KEYED)


async def test_the_same_answer_comes_again(shared_service: Service) -> None:
    """Word for word, also after the end; neither spacing, order, Accept nor Prefer make another request."""
    session = "idem-same"
    bodies = [
        b'{"message":"once","sessionKey":"idem-same","label":"l","metadata":{"a":1,"b":[1,2]}}',
        b'{ "metadata": {"b": [1, 2], "a": 1},\n"label":"l", "sessionKey": "idem-\\u0073ame", "message":"once" }',
    ]
    headers = {"content-type": "application/json", "idempotency-key": "same-1"}
    first = await shared_service.request("POST", RUNS, content=bodies[0], headers=headers)
    assert first.status == 202 and "idempotent-replayed" not in first.headers
    await shared_service.ended(first.run_id)
    for body in bodies:
        again = await shared_service.request("POST", RUNS, content=body, headers=headers)
        assert (again.status, again.body) == (202, first.body)
        assert again.headers["idempotent-replayed"] == "true"
        assert again.headers["location"] == first.headers["location"]
    waited = await shared_service.request("POST", RUNS, content=bodies[1], headers={**headers, "prefer": "wait=20"})
    assert (waited.status, waited.body["status"]) == (200, "succeeded"), waited.body
    assert waited.headers["idempotent-replayed"] == "true" and waited.headers["preference-applied"] == "wait=20"
    stream = await shared_service.open_stream(
        RUNS, method="POST", body=bodies[1], headers={**headers, "accept": "text/event-stream"}
    )
    async with stream:
        events = await stream.collect_until_done()
        assert stream.status == 200 and stream.headers["idempotent-replayed"] == "true"
    assert events[0].event == "accepted" and events[0].payload == first.body
    check_stream(events)
    assert len(await shared_service.runs(sessionKey=session)) == 1
    assert len(shared_service.model.requests_with("once")) == 1


OTHER_BODIES = [
    {"message": "other"},
    {"message": [{"type": "text", "text": "once"}]},
    {"sessionKey": "idem-other-session"},
    {"label": "new"},
    {"metadata": {"a": 1}},
    {"queue": {"mode": "reject"}},
    {"replyRequired": True},
]


async def test_another_body_under_the_key_is_refused(shared_service: Service) -> None:
    first = await shared_service.post("once", "idem-other", "other-1")
    await shared_service.ended(first.run_id)
    with nothing_stored(shared_service):
        for fields in OTHER_BODIES:
            body = {"message": "once", "sessionKey": "idem-other", **fields}
            for accept in ("application/json", "text/event-stream"):
                headers = {"idempotency-key": '"other-1"', "accept": accept}
                answer = await shared_service.request("POST", RUNS, json=body, headers=headers)
                check_problem(answer, 422, "idempotency-key-reused", header=KEYED)
        wrong = await shared_service.post("once", "idem-other", "other-1", nosuch=1)
        check_problem(wrong, 422, "validation-failed")


async def test_a_refusal_is_not_remembered(shared_service: Service) -> None:
    """The same request under the same key gets through once the reason is gone."""
    one, session = shared_service, "idem-busy"
    narrow = {"queue": {"cap": 1}}
    one.model.on("hold-the-lane", [hold("lane"), *reply_text("done")])
    held = await one.run("hold-the-lane", session)
    await one.model.until_held("lane")
    waiting = await one.run("wait here", session)
    refused = await one.post("x", session, "after-a-refusal", queue={"mode": "reject"})
    check_problem(refused, 409, "session-busy")
    check_problem(await one.post("y", session, "after-full", **narrow), 503, "queue-full")
    check_problem(await one.post("", session, "after-wrong"), 422, "validation-failed")
    one.model.release("lane")
    for run_id in (held, waiting):
        await one.ended(run_id)
    again = await one.post("x", session, "after-a-refusal", queue={"mode": "reject"})
    assert again.status == 202 and "idempotent-replayed" not in again.headers, again
    await one.ended(again.run_id)
    full = await one.post("y", session, "after-full", **narrow)
    assert full.status == 202 and "idempotent-replayed" not in full.headers
    corrected = await one.post("z", session, "after-wrong")
    assert corrected.status == 202
    for answer in (full, corrected):
        assert (await one.ended(answer.run_id))["status"] == "succeeded"


async def test_two_at_once_under_one_key_are_one_run(shared_service: Service) -> None:
    """In whatever form each asks for its answer."""
    session, key = "idem-at-once", "at-once-1"
    posts = [shared_service.post("at once", session, key) for _ in range(10)]
    waits = [shared_service.post("at once", session, key, headers={"prefer": "wait=20"}) for _ in range(5)]
    streams = [shared_service.post_stream("at once", session, key) for _ in range(5)]
    answers, waited, opened = await asyncio.gather(
        asyncio.gather(*posts), asyncio.gather(*waits), asyncio.gather(*streams)
    )
    run_ids = {answer.run_id for answer in (*answers, *waited)}
    for stream in opened:
        async with stream:
            assert stream.status == 200
            run_ids.add(str((await stream.collect_until_done())[0].payload["runId"]))
    assert len(run_ids) == 1
    headers = [answer.headers for answer in (*answers, *waited)] + [stream.headers for stream in opened]
    assert sum("idempotent-replayed" not in each for each in headers) == 1, "one of them made the run"
    assert len(await shared_service.runs(sessionKey=session)) == 1
