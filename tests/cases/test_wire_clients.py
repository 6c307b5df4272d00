"""Clients that leave in every way: what was accepted is executed, what was not leaves nothing, and nobody is kept."""

from __future__ import annotations

import asyncio
import random
import socket
from http import HTTPStatus

import pytest

from tests.kit.client import API
from tests.kit.gauges import level, until, until_quiet
from tests.kit.invariants import check_at_rest
from tests.kit.model_server import done, finish, hold, reply_text, text
from tests.kit.problems import stored
from tests.kit.raw import Leaving, head, json_request, leave
from tests.kit.rules import check_case
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import Stream, check_stream

RUNS = f"{API}/runs"
READERS = 5
"""Threads that read, `store.pool_size`, each with a connection of three files: made when first needed."""
SSE = ("Accept", "text/event-stream")


async def _leave_right_after_posting(one: Service, times: int) -> None:
    """Behind the last byte of the request, or behind the status line; whole requests, as JSON and as a stream."""
    chance = random.Random(3)
    ways: list[Leaving] = ["close", "reset"]

    async def post(number: int) -> None:
        headers = [("Idempotency-Key", f"leaver-{number}"), *([SSE] if number % 3 == 0 else [])]
        body = {"message": f"leaver {number}", "sessionKey": f"leavers-{number % 7}", "queue": {"cap": 1000}}
        request = json_request("POST", RUNS, body, headers)
        await leave(one.address, request, ways[number % 2], after_head=chance.random() < 0.5)

    for start in range(0, times, 20):
        await asyncio.gather(*(post(number) for number in range(start, min(times, start + 20))))
    answers = await asyncio.gather(
        *(
            one.post(f"leaver {number}", f"leavers-{number % 7}", f"leaver-{number}", queue={"cap": 1000})
            for number in range(times)
        )
    )
    run_ids = [answer.run_id for answer in answers]
    assert len(set(run_ids)) == times
    for run_id in run_ids:
        assert (await one.ended(run_id, 60_000))["status"] == "succeeded"
    rows = one.query("SELECT count(*) AS n FROM run JOIN session ON session.id = session_id WHERE key LIKE 'leavers-%'")
    assert rows[0]["n"] == times, "a post that was repeated made another run"
    await until_quiet(one)
    await check_case(one, run_ids[::10], sessions=[f"leavers-{number}" for number in range(7)])
    check_at_rest(one, accepted=run_ids)
    assert "Traceback" not in one.log, one.log[-3000:]


async def test_a_client_that_leaves_right_after_posting_stops_nothing(service: ServiceFactory) -> None:
    """WIRE-03"""
    async with service() as one:
        await _leave_right_after_posting(one, 60)


@pytest.mark.drill
async def test_three_hundred_clients_leave_right_after_posting(service: ServiceFactory) -> None:
    """WIRE-03, whole"""
    async with service() as one:
        await _leave_right_after_posting(one, 300)


async def test_a_request_that_breaks_off_leaves_nothing(service: ServiceFactory) -> None:
    """In the head, in the body, in a chunk; that somebody left is no failure of the service. WIRE-03"""
    async with service() as one:
        body = {"message": "never whole " * 100, "sessionKey": "half-made"}
        whole = json_request("POST", RUNS, body, [("Idempotency-Key", "half")])
        chunked = head("POST", RUNS, [("Transfer-Encoding", "chunked"), ("Content-Type", "application/json")])
        chunked += b'80\r\n{"message": "x", "sessionKey"'
        before = stored(one)
        ways: list[Leaving] = ["close", "reset"]
        for number, at in enumerate((0, 1, 20, whole.index(b"\r\n\r\n") + 4, len(whole) - 500, len(whole) - 1)):
            await leave(one.address, whole[:at], ways[number % 2])
        for how in ways:
            await leave(one.address, chunked, how)
        await one.get(RUNS)
        await until_quiet(one)
        await until(lambda: level(one).clients <= 1, "the connections of those that left are closed")
        assert stored(one) == before
        assert "Traceback" not in one.log, one.log[-3000:]
        run_id = await one.run("never whole", "half-made", "half")
        await check_case(one, [run_id], sessions=["half-made"])


async def _vanish(one: Service, count: int) -> list[socket.socket]:
    """Subscribers of every kind that go in every way; returns the sockets of those that only fall silent."""
    chance = random.Random(4)
    run_ids = [await one.run(f"hold-for-all {number}", f"vanishing-{number}") for number in range(4)]
    opened: list[Stream] = []
    silent: list[socket.socket] = []

    async def subscribe(number: int) -> None:
        run_id = run_ids[number % 4]
        way = number % 5
        if way < 3:
            stream = await one.stream(run_id, receive_buffer=2048 if way == 2 else None)
            if way != 2:
                await stream.next_event()
            opened.append(stream)
            return
        request = head("GET", f"{RUNS}/{run_id}/events", [SSE])
        kept = await leave(one.address, request, "half" if way == 3 else "reset", after_head=chance.random() < 0.5)
        silent.extend([kept] if kept is not None else [])

    for start in range(0, count, 50):
        await asyncio.gather(*(subscribe(number) for number in range(start, min(count, start + 50))))
    await until_quiet(one, runs_executing=4, open_streams=len(opened) + len(silent))
    for number, stream in enumerate(opened):
        stream.abort() if number % 2 else stream.close()
    return silent


async def _subscribers_vanish(one: Service, count: int) -> None:
    one.model.on("hold-for-all", [text("so far"), hold("all"), text(" and on"), finish(), done()])
    await one.ended(await one.run("x", "before-vanishing"))
    await asyncio.gather(*(one.get(RUNS) for _ in range(60)))  # what is made when first needed is there
    before = level(one)
    silent = await _vanish(one, count)
    for connection in silent:
        connection.close()
    await until_quiet(one, runs_executing=4)
    one.model.release("all")
    run_ids = [run["runId"] for run in await one.runs() if run["sessionKey"].startswith("vanishing-")]
    for run_id in run_ids:
        async with await one.stream(run_id) as stream:
            assert check_stream(await stream.collect_until_done()).texts == ["so far and on"]
    await check_case(one, run_ids, sessions=["vanishing-0"])
    await until_quiet(one)
    await one.close_clients()
    await until(lambda: level(one).clients == 0, "the connections are closed")
    after = level(one)
    assert after.files <= before.files + 5 + 3 * READERS, f"file handles: {before} {after}"
    assert after.threads <= before.threads + 5 + READERS, f"threads: {before} {after}"
    assert after.memory - before.memory < 60_000_000, f"memory: {before} {after}"
    assert "Traceback" not in one.log, one.log[-3000:]


async def test_subscribers_that_vanish_are_forgotten(service: ServiceFactory) -> None:
    """Closed, reset, gone before the first byte, or deaf; the gauge, handles, threads and memory come back. WIRE-04"""
    async with service({"limits.streams_per_principal": 1000, "events.heartbeat_seconds": 0.2}) as one:
        await _subscribers_vanish(one, 150)


@pytest.mark.drill
async def test_five_hundred_subscribers_vanish(service: ServiceFactory) -> None:
    """WIRE-04, whole"""
    async with service({"limits.streams_per_principal": 1000, "events.heartbeat_seconds": 0.2}) as one:
        await _subscribers_vanish(one, 500)


async def _all_places_are_free(one: Service, run_id: str, places: int, timeout_s: float = 30.0) -> None:
    """Await that so many streams can be held at once. The service may still be reading requests of those that left."""
    async with asyncio.timeout(timeout_s):
        while True:
            streams = [await one.stream(run_id) for _ in range(places)]
            refused = [stream.status for stream in streams if stream.status != HTTPStatus.OK]
            for stream in streams:
                stream.close()
            if not refused:
                return
            assert set(refused) == {HTTPStatus.TOO_MANY_REQUESTS}
            await until_quiet(one, runs_executing=1)


async def test_places_of_those_that_left_are_given_again(service: ServiceFactory) -> None:
    """More come and go than there are places; also those that are gone before their first byte."""
    async with service({"limits.streams_per_principal": 3}) as one:
        one.model.on("hold-the-door", [hold("door"), *reply_text("x")])
        run_id = await one.run("hold-the-door", "places")
        await one.model.until_held("door")
        request = head("GET", f"{RUNS}/{run_id}/events", [SSE])
        posted = json_request("POST", RUNS, {"message": "x", "sessionKey": "places-2", "queue": {"cap": 100}}, [SSE])
        for number in range(30):
            await leave(one.address, posted if number % 3 == 0 else request, "reset" if number % 2 else "close")
        await _all_places_are_free(one, run_id, 3)
        one.model.release("door")
        await one.ended(run_id)
        await until_quiet(one)


async def test_a_client_that_only_stops_sending_still_gets_its_answer(shared_service: Service) -> None:
    """A half-closed connection (`nc`, some proxies): an ordinary request is answered, or closed; it holds nothing."""
    one = shared_service
    async with await one.stream(await one.run("x", "half-closed")) as stream:
        stream.half_close()
        await stream.expect_end(30)
    await until_quiet(one)
