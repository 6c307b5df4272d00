"""An abort reaches the model's connection at once, and nothing of a stopped run shows up later."""

from __future__ import annotations

import asyncio

import pytest

from tests.kit.client import API
from tests.kit.gauges import until_quiet
from tests.kit.model_server import ModelServer, Reply, done, finish, headers, hold, reply_text, role, text
from tests.kit.rules import check_case, check_run, reply_texts, transcript_text
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import check_stream

STANDING: dict[str, Reply] = {
    "before-its-head": [hold("never")],
    "behind-its-head": [headers(), hold("never")],
    "in-mid-flow": [role(), text(*["word "] * 6_000, delay_s=0.01)],
    "silent-in-its-text": [role(), text("some words"), hold("never")],
}


@pytest.mark.parametrize("kind", STANDING)
async def test_an_abort_closes_the_connection_to_the_model_and_nothing_is_told_behind_the_end(
    shared_service: Service, kind: str
) -> None:
    """ABORT-03"""
    session, model = f"close-{kind}", shared_service.model
    model.on(f"[s:{session}]", STANDING[kind])
    run_id = await shared_service.run(f"hello [s:{session}]", session)
    follower = shared_service.follow(run_id).start()
    await model.until(lambda: bool(model.requests_of(session)), "the model's request")
    request = model.requests_of(session)[0]
    if any(step == role() for step in STANDING[kind]):
        await follower.until(lambda event: event.stream == "assistant", 30)

    answer = await shared_service.abort(run_id)
    assert answer["status"] in ("running", "cancelled") and answer["abortRequestedAt"] is not None
    # Well before the drain limit (`tools.abort_drain_ms`, 5 s): the turn is stopped, not merely left behind.
    await model.until(lambda: request.over, "the end of the model's request", 4)
    assert request.disconnected_at is not None and request.ended_at is None

    checked = check_stream(await follower.finish())
    assert checked.outcome == "cancelled"
    assert (await shared_service.record(run_id))["status"] == "cancelled"
    assert len(model.requests_of(session)) == 1
    kept = [transcript_text(item) for item in await shared_service.transcript(session) if item["role"] == "assistant"]
    assert kept == [words for words in checked.texts if words]
    await check_case(shared_service, [run_id], sessions=[session])
    await until_quiet(shared_service)


async def test_runs_stopped_before_the_first_byte_leave_nothing_that_spoils_later_ones(
    service: ServiceFactory, model: ModelServer
) -> None:
    """ABORT-08"""
    model.on("stop this", [hold("never")])
    model.on("a normal one", reply_text("a normal answer"))
    async with service() as one:
        stopped = []
        for number in range(10):
            stopped.append(await one.run(f"stop this {number} [s:a]", "a"))
            await model.until_requests(number + 1)
            await one.abort(stopped[-1])
            assert (await one.ended(stopped[-1]))["status"] == "cancelled"
        normal = await one.run("a normal one [s:a]", "a")
        assert reply_texts(await one.ended(normal)) == ["a normal answer"]
        await check_case(one, [*stopped, normal])
        before, asked_before = await one.transcript("a"), model.requests[-1].messages

        await one.restart(hard=False)
        assert await one.transcript("a") == before
        after = await one.run("a normal one, again [s:a]", "a")
        assert reply_texts(await one.ended(after)) == ["a normal answer"]
        assert (await one.transcript("a"))[: len(before)] == before
        asked = model.requests[-1].messages
        assert asked[: len(asked_before)] == asked_before, "the history sent to the model changed over the restart"
        await check_case(one, [*stopped, normal, after], sessions=["a"])
        await until_quiet(one)


async def test_a_run_stopped_before_its_first_token_hands_out_no_earlier_answer(shared_service: Service) -> None:
    """ABORT-10"""
    session, model = "alpha", shared_service.model
    model.on(f"say it [s:{session}]", reply_text("ALPHA"))
    model.on(f"say more [s:{session}]", [headers(), hold("never")])
    first = await shared_service.run(f"say it [s:{session}]", session)
    assert reply_texts(await shared_service.ended(first)) == ["ALPHA"]

    second = await shared_service.run(f"say more [s:{session}]", session)
    waiting = asyncio.create_task(shared_service.wait(second))
    await model.until(lambda: len(model.requests_of(session)) == 2, "the second request")
    await shared_service.abort(second)
    waited, record = await waiting, await shared_service.ended(second)
    assert (waited["status"], waited["error"]["code"]) == ("error", "cancelled")
    assert reply_texts(waited) == reply_texts(record) == []
    async with await shared_service.stream(second) as stream:
        events = await stream.collect_until_done()
    assert all("ALPHA" not in event.raw for event in events)
    assert (await check_run(shared_service, second)).texts == []
    roles = [item["role"] for item in await shared_service.transcript(session)]
    assert roles == ["user", "assistant", "user"]
    await check_case(shared_service, [first, second], sessions=[session])
    await until_quiet(shared_service)


async def test_an_abort_that_comes_with_the_run_already_over_changes_nothing_and_says_so(
    shared_service: Service,
) -> None:
    """ABORT-06"""
    run_id = await shared_service.run("[s:over] hello", "over")
    before = await shared_service.ended(run_id)
    assert before["status"] == "succeeded"
    for _ in range(2):
        answer = await shared_service.abort(run_id, "too late")
        assert (answer["runId"], answer["status"], answer["abortRequestedAt"]) == (run_id, "succeeded", None)
    assert await shared_service.record(run_id) == before
    unknown = await shared_service.request("POST", f"{API}/runs/00000000-0000-7000-8000-000000000000/abort", json={})
    assert (unknown.status, unknown.code) == (404, "run-not-found")
    await check_case(shared_service, [run_id], sessions=["over"])


async def test_a_running_abort_answer_is_kept_and_a_final_one_is_already_true(shared_service: Service) -> None:
    """ABORT-06"""
    session, model = "kept", shared_service.model
    model.on(f"first [s:{session}]", [role(), text("some words"), hold("never"), finish(), done()])
    first = await shared_service.run(f"first [s:{session}]", session)
    second = await shared_service.run(f"second [s:{session}]", session)
    await model.until(lambda: bool(model.requests_of(session)), "the model's request")

    answer = await shared_service.abort(second)
    assert answer["status"] == (await shared_service.record(second))["status"] == "cancelled"
    requested = await shared_service.abort(first, "enough")
    at_once = await shared_service.record(first)
    assert requested["status"] in ("running", "cancelled")
    assert at_once["status"] == "cancelled" or requested["status"] == "running"
    assert at_once["abortRequestedAt"] == requested["abortRequestedAt"] is not None
    again = await shared_service.abort(first, "another reason")
    assert again["abortRequestedAt"] == requested["abortRequestedAt"]
    ended = await shared_service.ended(first)
    assert (ended["status"], ended["outcome"], ended["abortReason"]) == ("cancelled", "cancelled", "enough")
    await check_case(shared_service, [first, second], sessions=[session])
    await until_quiet(shared_service)
