"""Whatever a run dies of, and however slowly it stops: its lane is given back, and the next message runs."""

from __future__ import annotations

import asyncio

import pytest

from tests.kit.gauges import until_quiet
from tests.kit.invariants import check_at_rest
from tests.kit.model_server import (
    ModelServer,
    Reply,
    cut,
    data,
    end,
    error,
    finish,
    headers,
    hold,
    raw,
    reply_text,
    reset,
    role,
    text,
    unframed,
)
from tests.kit.rules import check_case
from tests.kit.service import Service, ServiceFactory
from tests.kit.steps import frame

REPEATS = 10

RELUCTANT: dict[str, Reply] = {
    "silent-before-its-head": [hold("never")],
    "silent-behind-its-head": [headers(), hold("never")],
    "silent-in-its-text": [role(), text("and then "), hold("never")],
    "in-full-flow": [role(), text(*["word "] * 200_000, delay_s=0.0002)],
    "silent-behind-its-finish-reason": [role(), text("that was all"), finish(), hold("never")],
}


@pytest.mark.parametrize("kind", RELUCTANT)
async def test_the_message_right_behind_an_abort_runs_however_the_model_stood(
    shared_service: Service, kind: str
) -> None:
    """LANE-05"""
    session = f"release-{kind}"
    await _abort_again_and_again(shared_service, session, RELUCTANT[kind])
    await check_case(shared_service, sessions=[session])
    await until_quiet(shared_service)


async def test_a_turn_that_does_not_stop_in_time_is_left_behind_without_its_lane(
    service: ServiceFactory, model: ModelServer
) -> None:
    """LANE-05"""
    async with service({"tools.abort_drain_ms": 0}) as one:
        for kind, reply in RELUCTANT.items():
            await _abort_again_and_again(one, kind, reply)
        check_at_rest(one)
        await until_quiet(one)


async def _abort_again_and_again(one: Service, session: str, reply: Reply) -> None:
    """Each time: a run in that state, its abort, and the next message at once, which must be answered."""
    model = one.model
    model.on(f"stuck [s:{session}]", reply)
    model.on(f"next [s:{session}]", reply_text("here I am"))
    for number in range(REPEATS):
        stuck = await one.run(f"stuck [s:{session}]", session)
        before = 2 * number + 1
        await model.until(lambda: len(model.requests_of(session)) == before, "the stuck run's request")  # noqa: B023
        await one.abort(stuck)
        following = await one.run(f"next [s:{session}]", session)
        assert (await one.ended(following))["status"] == "succeeded"
        record = await one.record(stuck)
        assert record["status"] == "cancelled", f"repeat {number}: {record}"
        assert len(model.requests_of(session)) == before + 1


BROKEN: dict[str, Reply] = {
    "reset-before-the-head": [reset()],
    "closed-before-the-head": [cut()],
    "no-http": [unframed(b"\x00\x01 this is no HTTP\r\n\r\n"), cut()],
    "reset-behind-the-head": [headers(), reset()],
    "reset-in-the-text": [role(), text("some words"), reset()],
    "closed-in-the-text": [role(), text("some words"), cut()],
    "ended-in-the-text": [role(), text("some words"), end()],
    "broken-framing": [role(), text("some words"), unframed(b"no chunk size\r\n"), cut()],
    "broken-json": [role(), text("some words"), raw(b"data: {broken\n\n"), hold("never")],
    "not-utf-8": [role(), text("some words"), raw(b'data: {"choices":[{"delta":{"content":"\xff\xfe"}}]}\n\n'), end()],
    "another-shape": [data([1, 2, 3]), data("words"), data({"choices": "none"}), end()],
    "half-a-line": [role(), raw(frame({"choices": []})[:12]), cut()],
    "a-page-of-html": [headers(200, {"content-type": "text/html"}), raw(b"<html>hello</html>"), end()],
    "nothing-at-all": [headers(), end()],
    "a-redirect": [headers(302, {"location": "http://127.0.0.1:9/", "content-length": "0"}, framing="length")],
    "a-failure": error(500),
    "a-failure-that-never-ends": [headers(500, {"content-type": "application/json"}), raw(b'{"err'), hold("never")],
    "encoded-in-nothing-known": [headers(200, {"content-type": "text/event-stream", "content-encoding": "gzip"}),
                                 raw(b"this is not gzip"), end()],
}  # fmt: skip


async def test_a_run_whose_model_fails_in_any_odd_way_ends_with_an_error_and_frees_its_lane(
    shared_service: Service,
) -> None:
    """LANE-06"""
    model = shared_service.model
    pid = shared_service.pid

    async def one_kind(kind: str, reply: Reply) -> None:
        session = f"broken-{kind}"
        model.on(f"breaks [s:{session}]", reply)
        model.on(f"next [s:{session}]", reply_text("here I am"))
        broken = await shared_service.run(f"breaks [s:{session}]", session)
        following = await shared_service.run(f"next [s:{session}]", session)
        record = await shared_service.ended(broken)
        assert record["status"] == "failed", f"{kind}: {record}"
        assert record["error"]["code"].startswith("provider-"), f"{kind}: {record}"
        assert (await shared_service.ended(following))["status"] == "succeeded", kind
        await check_case(shared_service, [broken, following], sessions=[session])

    await asyncio.gather(*(one_kind(kind, reply) for kind, reply in BROKEN.items()))
    assert shared_service.pid == pid and shared_service.alive
    await until_quiet(shared_service)


ODD_DEATHS = ("CP-4", "CP-6", "CP-8", "CP-11", "CP-23", "CP-24", "CP-25", "CP-34")


async def test_an_exception_at_any_place_of_the_execution_loses_neither_the_run_nor_the_lane(
    service: ServiceFactory, model: ModelServer
) -> None:
    """LANE-06"""
    async with service(faults=",".join(f"{point}=raise" for point in ODD_DEATHS)) as one:
        sessions = [f"s{number}" for number in range(len(ODD_DEATHS))]
        run_ids = [await one.run(f"say this [s:{name}]", name) for name in sessions for _ in range(2)]
        followers = [one.follow(run_id).start() for run_id in run_ids]
        for run_id, follower in zip(run_ids, followers, strict=True):
            record = await one.ended(run_id)
            assert record["status"] == "succeeded" or record["error"]["code"] == "internal", record
            await follower.finish(15)
        assert "FaultInjected" in one.log
        await check_case(one, run_ids, sessions=sessions)
        check_at_rest(one, accepted=run_ids)
        await until_quiet(one)
