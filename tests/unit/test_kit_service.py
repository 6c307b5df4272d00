"""The kit on the real service: a life in a process, the calls, streams across restarts, the database, the rules."""

from __future__ import annotations

import asyncio
import sqlite3

import httpx
import psycopg
import pytest

from tests.kit.client import API, with_query
from tests.kit.invariants import check_at_rest, check_invariants
from tests.kit.model_server import ModelServer, done, finish, hold, reply_text, text
from tests.kit.rules import check_case, check_run, reply_texts
from tests.kit.service import Service, ServiceFactory, StartFailed
from tests.kit.sse import check_stream


def test_a_query_leaves_out_none_and_repeats_lists() -> None:
    assert with_query("/x", {"a": 1, "b": None, "c": ["d e", "+"]}) == "/x?a=1&c=d+e&c=%2B"
    assert with_query("/x", {"b": None}) == "/x"


async def test_one_run_by_all_calls(shared_service: Service) -> None:
    session = "kit-one-run"
    answer = await shared_service.post(f"[s:{session}] say this", session, "kit-key-1", label="kit")
    assert answer.status == 202 and answer.headers["location"].endswith(answer.run_id)
    run_id = answer.run_id
    waited = await shared_service.wait(run_id)
    assert waited["status"] == "ok" and reply_texts(waited) == [f"[s:{session}] say this"]
    repeated = await shared_service.post(f"[s:{session}] say this", session, "kit-key-1", label="kit")
    assert repeated.run_id == run_id and repeated.headers["idempotent-replayed"] == "true"
    assert (await shared_service.record(run_id))["status"] == "succeeded"
    assert [run["runId"] for run in await shared_service.runs(sessionKey=session)] == [run_id]
    assert (await shared_service.abort(run_id))["status"] == "succeeded"
    assert [item["role"] for item in await shared_service.transcript(session)] == ["user", "assistant"]
    assert {row["action"] for row in await shared_service.audit(runId=run_id)} == {"run.start", "run.end"}
    assert len(shared_service.model.requests_of(session)) == 1
    await check_case(shared_service, [run_id], sessions=[session])


async def test_answers_that_are_no_success(shared_service: Service) -> None:
    missing = await shared_service.request("GET", f"{API}/runs/nothing")
    assert (missing.status, missing.code) == (404, "run-not-found")
    with pytest.raises(AssertionError, match="expected 200, got 404"):
        await shared_service.record("nothing")
    async with await shared_service.stream("nothing") as stream:
        assert stream.status == 404 and (await stream.json())["code"] == "run-not-found"


async def test_a_stream_of_a_post_and_a_resumed_one(shared_service: Service) -> None:
    session = "kit-post-stream"
    async with await shared_service.post_stream("say this back", session) as stream:
        events = await stream.collect_until_done()
    assert (events[0].event, events[0].id) == ("accepted", "0")
    checked = check_stream(events)
    run_id = str(events[0].payload["runId"])
    for after in range(len(checked.events) + 1):
        async with await shared_service.stream(run_id, after=after) as stream:
            check_stream(await stream.collect_until_done(), after=after)
    async with await shared_service.stream(run_id, last_event_id=len(checked.events) + 1) as stream:
        assert stream.status == 204


async def test_holds_let_a_test_look_inside_a_run(service: ServiceFactory, model: ModelServer) -> None:
    model.on("hold here", [text("be"), hold("middle"), text("fore"), finish(), done()])
    async with service() as one:
        run_id = await one.run("hold here [s:a]", "a")
        async with one.follow(run_id) as follower:
            await model.until_held("middle")
            await follower.until(lambda event: event.payload.get("delta") == "be")
            assert (await one.record(run_id))["status"] == "running"
            assert (await one.wait(run_id, 50))["waitExpired"] is True
            check_invariants(one, accepted=[run_id], capacity=8)
            model.release("middle")
            assert check_stream(await follower.finish()).texts == ["before"]
        await check_case(one, [run_id], sessions=["a"])


async def test_a_follower_lives_through_a_kill(service: ServiceFactory, model: ModelServer) -> None:
    model.on("slow", reply_text("one two three four five six", deltas=27, delay_s=0.05))
    async with service() as one:
        address = one.address
        run_id = await one.run("slow [s:a]", "a")
        async with one.follow(run_id) as follower:
            await follower.until(lambda event: event.payload.get("offset") == 5)
            await one.restart()
            assert (one.lives, one.address) == (2, address)
            checked = check_stream(await follower.finish())
        assert checked.outcome == "completed" and "one two three four five six" in checked.texts
        assert follower.connections > 1 and follower.violations == []
        assert (await check_run(one, run_id)).outcome == "completed"
        await one.restart(hard=False)
        check_at_rest(one, accepted=[run_id])


async def test_a_fault_kills_the_first_life_only(service: ServiceFactory) -> None:
    one = service(faults="CP-2=kill")
    one.start()
    with pytest.raises(httpx.HTTPError):
        await one.post("[s:a] x", "a")
    assert await one.until_exit(5) == -9
    rows = one.query("SELECT id, status FROM run")
    assert len(rows) == 1
    await one.up()
    assert (await one.ended(rows[0]["id"]))["status"] == "succeeded"
    one.terminate()
    assert one.wait_exit(20) == 0


def test_a_service_that_cannot_start_tells_why(service: ServiceFactory) -> None:
    with pytest.raises(StartFailed, match="queue"):
        service({"queue.mode": "nonsense"}).start()


async def test_the_database_can_be_read_but_not_written(service: ServiceFactory) -> None:
    async with service() as one:
        with pytest.raises((sqlite3.OperationalError, psycopg.errors.ReadOnlySqlTransaction)):
            one.query("DELETE FROM run")
        one.kill()
        assert one.query("SELECT count(*) AS n FROM run") == [{"n": 0}]


async def test_many_sessions_at_once(shared_service: Service) -> None:
    sessions = [f"kit-many-{at}" for at in range(30)]
    run_ids = await asyncio.gather(*(shared_service.run(f"[s:{name}] hello", name) for name in sessions))
    await check_case(shared_service, run_ids)
