"""A reader that is lost stops nothing: the run goes on, and whoever comes back gets all that was missed."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.kit.client import API
from tests.kit.gauges import until_quiet
from tests.kit.model_server import Reply, Request, done, finish, hold, role, text
from tests.kit.rules import check_case, reply_texts
from tests.kit.service import Service
from tests.kit.sse import check_stream

WORDS = [f"word {number} " for number in range(30)]


@pytest.mark.parametrize("way", ["reset", "close"])
@pytest.mark.parametrize("opened_by", ["get", "post"])
async def test_a_lost_reader_does_not_stop_the_run_and_misses_nothing_when_it_comes_back(
    shared_service: Service, way: str, opened_by: str
) -> None:
    """ABORT-09"""
    session, model = f"lost-{way}-{opened_by}", shared_service.model
    held = [f"{session}-{number}" for number in range(2)]
    model.on(
        f"[s:{session}]",
        [
            role(),
            text(*WORDS[:10]),
            hold(held[0]),
            text(*WORDS[10:20]),
            hold(held[1]),
            text(*WORDS[20:]),
            finish(),
            done(),
        ],
    )
    if opened_by == "post":
        first = await shared_service.post_stream(f"hello [s:{session}]", session, f"key-{session}")
        run_id = str((await first.next_event()).payload["runId"])
    else:
        run_id = await shared_service.run(f"hello [s:{session}]", session)
        first = await shared_service.stream(run_id)
    await first.until(lambda event: event.payload.get("delta") is not None)
    (first.abort if way == "reset" else first.close)()

    await until_quiet(shared_service, runs_executing=1)
    request = model.requests_of(session)[0]
    assert not request.over and (await shared_service.record(run_id))["status"] == "running"
    model.release(held[0])
    await model.until_held(held[1])
    second = await shared_service.stream(run_id, last_event_id=first.last_id)
    await second.until(lambda event: "word 19" in event.payload.get("delta", ""))
    model.release(held[1])
    await second.collect_until_done()
    checked = check_stream([*first.events, *second.events])
    assert checked.outcome == "completed" and checked.texts == ["".join(WORDS)]
    assert request.ended_at is not None and request.disconnected_at is None
    assert reply_texts(await shared_service.record(run_id)) == ["".join(WORDS)]
    assert len(model.requests_of(session)) == 1
    second.close()
    await check_case(shared_service, [run_id], sessions=[session])
    await until_quiet(shared_service)


async def test_clients_that_leave_a_waiting_call_do_not_stop_the_run(shared_service: Service) -> None:
    """ABORT-09"""
    session, model = "left-waiting", shared_service.model

    def reply(request: Request) -> Reply:
        return [role(), text(*WORDS[:10]), hold(request.last_user_text), text(*WORDS[10:]), finish(), done()]

    model.on(f"[s:{session}]", reply)
    message = f"hello [s:{session}]"
    body = {"message": message, "sessionKey": session}
    leaving = {"prefer": "wait=30", "idempotency-key": "left-waiting"}
    async with httpx.AsyncClient(trust_env=False) as client:
        posted = asyncio.create_task(
            client.post(f"{shared_service.address}{API}/runs", json=body, headers=leaving, timeout=30)
        )
        await model.until_held(message)
        (run,) = await shared_service.runs(sessionKey=session)
        waiting = asyncio.create_task(client.get(f"{shared_service.address}{run['links']['wait']}", timeout=30))
        assert (await shared_service.wait(run["runId"], 100))["waitExpired"] is True
        for call in (posted, waiting):
            call.cancel()
        await asyncio.gather(posted, waiting, return_exceptions=True)
    assert (await shared_service.wait(run["runId"], 100))["waitExpired"] is True
    assert not model.requests_of(session)[0].over
    model.release(message)
    assert reply_texts(await shared_service.ended(run["runId"])) == ["".join(WORDS)]
    again = await shared_service.post(message, session, "left-waiting")
    assert again.run_id == run["runId"]
    await check_case(shared_service, [run["runId"]], sessions=[session])
    await until_quiet(shared_service)
