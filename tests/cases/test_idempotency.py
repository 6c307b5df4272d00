"""One key, one run: whoever repeats a post, however often and whenever, and whatever happened to the first answer."""

from __future__ import annotations

import asyncio

import httpx
import orjson

from app.faults import Point
from tests.kit.client import API, Answer, session_path
from tests.kit.gauges import until_quiet
from tests.kit.invariants import check_at_rest, check_invariants
from tests.kit.model_server import ModelServer, Reply, done, finish, hold, reply_text, role, text
from tests.kit.rules import check_case, reply_texts
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import check_stream


async def test_twenty_posts_at_once_with_one_key_make_one_run(shared_service: Service) -> None:
    """IDEM-01"""
    session, model = "one-key", shared_service.model
    message = f"hello [s:{session}]"
    spellings = [
        orjson.dumps({"message": message, "sessionKey": session, "label": "once"}),
        orjson.dumps({"label": "once", "sessionKey": session, "message": message}, option=orjson.OPT_INDENT_2),
    ]
    answers = await asyncio.gather(*(_post(shared_service, spellings[n % 2], "one-key") for n in range(20)))
    assert [answer.status for answer in answers] == [202] * 20
    assert len({answer.run_id for answer in answers}) == 1
    assert len({orjson.dumps(answer.body) for answer in answers}) == 1, "the repeats got other bodies"
    assert sorted(answer.headers.get("idempotent-replayed", "") for answer in answers) == ["", *["true"] * 19]

    run_id = answers[0].run_id
    assert (await shared_service.ended(run_id))["status"] == "succeeded"
    assert len(model.requests_of(session)) == 1
    assert [item["role"] for item in await shared_service.transcript(session)] == ["user", "assistant"]
    assert [run["runId"] for run in await shared_service.runs(sessionKey=session)] == [run_id]
    await check_case(shared_service, [run_id], sessions=[session])
    await until_quiet(shared_service)


async def test_a_key_that_stands_for_another_body_is_refused_and_leaves_nothing(shared_service: Service) -> None:
    """IDEM-01"""
    session, other = "key-reused", "key-reused-elsewhere"
    first = await shared_service.post(f"hello [s:{session}]", session, "key-reused")
    for message, where in ((f"hello, again [s:{session}]", session), (f"hello [s:{session}]", other)):
        refused = await shared_service.post(message, where, "key-reused")
        assert (refused.status, refused.code) == (422, "idempotency-key-reused"), refused.body
    nothing = await shared_service.request("GET", session_path(other))
    assert (nothing.status, nothing.code) == (404, "session-not-found")
    assert [run["runId"] for run in await shared_service.runs(sessionKey=session)] == [first.run_id]
    repeated = await shared_service.post(f"hello [s:{session}]", session, "key-reused")
    assert repeated.run_id == first.run_id
    await check_case(shared_service, [first.run_id], sessions=[session, other])


async def test_twenty_posts_at_once_with_one_key_and_two_bodies_make_one_run_of_one_body(
    shared_service: Service,
) -> None:
    """IDEM-01"""
    session = "two-bodies"
    messages = [f"body {number % 2} [s:{session}]" for number in range(20)]
    answers = await asyncio.gather(*(shared_service.post(words, session, "two-bodies") for words in messages))
    assert sorted(answer.status for answer in answers) == [202] * 10 + [422] * 10
    taken = {words for words, answer in zip(messages, answers, strict=True) if answer.status == 202}
    run_ids = {answer.run_id for answer in answers if answer.status == 202}
    assert (len(taken), len(run_ids)) == (1, 1)
    await asyncio.gather(*(shared_service.ended(run_id) for run_id in run_ids))
    assert [request.last_user_text for request in shared_service.model.requests_of(session)] == [*taken]
    await check_case(shared_service, run_ids, sessions=[session])


async def test_a_key_names_its_run_while_it_waits_runs_and_has_ended_and_after_restarts(
    service: ServiceFactory, model: ModelServer
) -> None:
    """IDEM-02"""
    model.on("ahead", [role(), text("first"), hold("ahead"), finish(), done()])
    half: Reply = [role(), text("half of it"), hold("mid")]
    model.on("the one", half, half, reply_text("the whole answer"))
    message = "the one [s:a]"
    async with service({"server.drain_seconds": 0}) as one:
        ahead = await one.run("ahead [s:a]", "a")
        first = await one.post(message, "a", "the-key")

        async def again(status: str, attempt: int) -> None:
            repeated = await one.post(message, "a", "the-key")
            assert (repeated.status, repeated.run_id) == (202, first.run_id)
            assert repeated.headers["idempotent-replayed"] == "true"
            record = await one.record(first.run_id)
            assert (record["status"], record["attempt"]) == (status, attempt), record

        await again("queued", 0)
        model.release("ahead")
        await model.until_held("mid")
        await again("running", 1)
        await one.restart(hard=True)
        await model.until_held("mid", 2)
        await again("running", 2)
        await one.restart(hard=False)
        assert reply_texts(await one.ended(first.run_id)) == ["the whole answer"]
        await again("succeeded", 3)

        async with await one.post_stream(message, "a", "the-key") as stream:
            events = await stream.collect_until_done()
        assert events[0].stream == "accepted" and events[0].payload["runId"] == first.run_id
        assert check_stream(events).outcome == "completed"
        users = [item["runId"] for item in await one.transcript("a") if item["role"] == "user"]
        assert users == [ahead, first.run_id]
        await check_case(one, [ahead, first.run_id], sessions=["a"])
        check_at_rest(one, accepted=[ahead, first.run_id])
        await until_quiet(one)


AROUND_THE_ACCEPT = (Point.ACCEPT_BEFORE_COMMIT, Point.ACCEPT_COMMITTED, Point.ACCEPT_WOKEN)


async def test_a_post_whose_answer_was_lost_in_a_kill_names_one_run_when_it_is_repeated(
    service: ServiceFactory, model: ModelServer
) -> None:
    """IDEM-02"""
    one = service()
    for lives, point in enumerate(AROUND_THE_ACCEPT):
        await one.up(faults=f"{point.value}=kill")
        try:
            answer = await one.post(f"hello [s:{point.value}]", point.value, f"key-{point.value}")
        except httpx.HTTPError:
            pass
        else:
            raise AssertionError(f"an answer in spite of the kill at {point}: {answer}")
        assert await one.until_exit() == -9
        stored = one.query("SELECT run_id FROM idem")
        assert len(stored) == lives, f"{point}: {stored}"
        check_invariants(one, accepted=[row["run_id"] for row in stored])

    await one.up()
    names = {row["key"]: row["run_id"] for row in one.query("SELECT key, run_id FROM idem")}
    run_ids = []
    for point in AROUND_THE_ACCEPT:
        key = f"key-{point.value}"
        posts = (one.post(f"hello [s:{point.value}]", point.value, key) for _ in range(5))
        answers = await asyncio.gather(*posts)
        assert [answer.status for answer in answers] == [202] * 5
        (run_id,) = {answer.run_id for answer in answers}
        assert names.get(key, run_id) == run_id, "the repeat made a second run"
        replayed = sum("idempotent-replayed" in answer.headers for answer in answers)
        assert replayed == (4 if point is Point.ACCEPT_BEFORE_COMMIT else 5)
        assert (await one.ended(run_id))["status"] == "succeeded"
        users = [item["runId"] for item in await one.transcript(point.value) if item["role"] == "user"]
        assert users == [run_id]
        assert len(model.requests_of(point.value)) == 1
        run_ids.append(run_id)
    await check_case(one, run_ids, sessions=[point.value for point in AROUND_THE_ACCEPT])
    check_at_rest(one, accepted=run_ids)
    await until_quiet(one)


async def _post(one: Service, body: bytes, key: str) -> Answer:
    headers = {"content-type": "application/json", "idempotency-key": key}
    return await one.request("POST", f"{API}/runs", content=body, headers=headers)
