"""Busy sessions, full queues and the run's own limit: what is refused stores nothing, what runs out says so."""

from __future__ import annotations

import asyncio

from tests.kit.client import API
from tests.kit.model_server import Reply, Request, hold, reply_text, text
from tests.kit.problems import check_problem, nothing_stored
from tests.kit.raw import chunks, exchange, head, json_request
from tests.kit.rules import check_case, check_run, transcript_text
from tests.kit.service import Service, ServiceFactory

RUNS = f"{API}/runs"
SSE = "text/event-stream"


async def _busy(one: Service, session: str, waiting: int) -> list[str]:
    """One run that is held and so many behind it."""
    one.model.on(f"hold {session}", [hold(session), *reply_text("held")])
    run_ids = [await one.run(f"hold {session}", session)]
    await one.model.until_held(session)
    return run_ids + [await one.run(f"waits {n}", session, queue={"cap": 100}) for n in range(waiting)]


async def test_a_full_queue_refuses_with_a_hint_and_stores_nothing(service: ServiceFactory) -> None:
    async with service({"queue.cap": 2}) as one:
        run_ids = await _busy(one, "full", 2)
        with nothing_stored(one):
            for fields in ({}, {"queue": {"mode": "followup"}}, {"queue": {"cap": 1}}, {"queue": {"cap": 2}}):
                for headers in ({}, {"accept": SSE}, {"prefer": "wait=5"}, {"idempotency-key": "full-1"}):
                    answer = await one.post("one too many", "full", headers=headers, **fields)
                    check_problem(answer, 503, "queue-full")
        assert (await one.session("full"))["queuedRuns"] == 2
        other = await one.run("elsewhere", "not-full")
        assert (await one.ended(other))["status"] == "succeeded"
        run_ids.append(await one.run("with a larger cap", "full", queue={"cap": 3}))
        check_problem(await one.post("x", "full", queue={"cap": 3}), 503, "queue-full")
        assert (await one.abort(run_ids[1]))["status"] == "cancelled"
        check_problem(await one.post("x", "full"), 503, "queue-full")
        assert (await one.abort(run_ids[2]))["status"] == "cancelled"
        run_ids.append(await one.run("there is room again", "full"))
        one.model.release("full")
        ended = [await one.ended(run_id) for run_id in run_ids]
        assert [record["status"] for record in ended] == [
            "succeeded", "cancelled", "cancelled", "succeeded", "succeeded",
        ]  # fmt: skip
        assert not one.model.requests_with("one too many")
        await check_case(one, run_ids, sessions=["full"])


async def test_posts_at_once_fill_a_queue_to_its_cap_and_not_beyond(shared_service: Service) -> None:
    one = shared_service
    run_ids = await _busy(one, "rush", 0)
    answers = await asyncio.gather(*(one.post(f"rush {n}", "rush", queue={"cap": 5}) for n in range(30)))
    taken = [answer.run_id for answer in answers if answer.status == 202]
    assert len(taken) == 5
    for answer in answers:
        if answer.status != 202:
            check_problem(answer, 503, "queue-full")
    one.model.release("rush")
    await check_case(one, run_ids + taken, sessions=["rush"])


async def test_reject_refuses_a_busy_session_only(shared_service: Service) -> None:
    idle = await shared_service.post("x", "reject", queue={"mode": "reject"})
    assert idle.status == 202
    await shared_service.ended(idle.run_id)
    for waiting in (0, 1):
        session = f"reject-{waiting}"
        run_ids = await _busy(shared_service, session, waiting)
        with nothing_stored(shared_service):
            for headers in ({}, {"accept": SSE}, {"prefer": "wait=5"}, {"idempotency-key": "reject-1"}):
                answer = await shared_service.post("x", session, headers=headers, queue={"mode": "reject"})
                check_problem(answer, 409, "session-busy", pointer="#/queue/mode")
        shared_service.model.release(session)
        await check_case(shared_service, run_ids)
        after = await shared_service.post("x", session, queue={"mode": "reject"})
        assert after.status == 202
        await check_case(shared_service, [after.run_id], sessions=[session])


async def test_receipts_tell_the_place_in_the_queue(shared_service: Service) -> None:
    run_ids = await _busy(shared_service, "receipts", 3)
    for place, run_id in enumerate(run_ids):
        receipt = (await shared_service.record(run_id))["receipt"]
        if place == 0:
            assert receipt["state"] == "started"
        else:
            told = (receipt["state"], receipt["position"], receipt["behind"])
            assert told == ("queued", place, run_ids[place - 1]), receipt
    await shared_service.abort(run_ids[1])
    assert (await shared_service.record(run_ids[1]))["receipt"]["state"] == "withdrawn"
    moved = (await shared_service.record(run_ids[2]))["receipt"]
    assert (moved["position"], moved["behind"]) == (1, run_ids[0])
    shared_service.model.release("receipts")
    await check_case(shared_service, run_ids)
    assert (await shared_service.record(run_ids[2]))["receipt"]["state"] == "ended"


async def test_a_run_over_its_limit_is_timed_out_everywhere_alike(shared_service: Service) -> None:
    """Before a byte, in mid text; what came is kept and marked, and the connection to the model is closed."""
    model = shared_service.model
    model.on("silent-limit", [hold("limit"), *reply_text("too late")])
    model.on("text-limit", [text("what came"), hold("limit"), *reply_text("too late")])
    for marker, kept in (("silent-limit", []), ("text-limit", [("what came", True)])):
        session = f"timed-{marker}"
        run_id = await shared_service.run(f"{marker} [s:{session}]", session, timeoutSeconds=0.5)
        record = await shared_service.ended(run_id)
        assert (record["status"], record["error"]["code"]) == ("timed_out", "timed-out"), record
        assert (await shared_service.wait(run_id))["status"] == "timeout"
        assert [run["runId"] for run in await shared_service.runs(sessionKey=session, status="timed_out")] == [run_id]
        ended = await shared_service.audit(runId=run_id, status="timed_out")
        assert [(row["action"], row["code"]) for row in ended] == [("run.end", "timed-out")]
        items = await shared_service.transcript(session)
        said = [(transcript_text(item), item["aborted"]) for item in items if item["role"] == "assistant"]
        assert said == kept
        checked = await check_run(shared_service, run_id)
        assert checked.terminal is not None and checked.terminal.phase == "error" and checked.outcome == "timed-out"
        request = model.requests_with(marker)[0]
        await model.until_idle()
        assert request.disconnected_at is not None
        await check_case(shared_service, sessions=[session])


async def test_zero_lifts_the_limit_of_the_agent(service: ServiceFactory) -> None:
    """And the agent's own limit is the one where the request names none."""

    def slow(_: Request) -> Reply:
        return [hold("past-the-limit"), *reply_text("in the end")]

    async with service({"agents.defaults.timeout_seconds": 0.5}) as one:
        one.model.default(slow)
        bare = await one.run("x", "agent-limit")
        lifted = await one.run("y", "no-limit", timeoutSeconds=0)
        longer = await one.run("z", "longer", timeoutSeconds=600)
        assert (await one.ended(bare))["status"] == "timed_out"
        one.model.release("past-the-limit")
        for run_id in (lifted, longer):
            assert (await one.ended(run_id))["status"] == "succeeded"
        await check_case(one, [bare, lifted, longer])


BODY_BYTES = 2000


def _body_of(size: int) -> bytes:
    rest = b'{"sessionKey":"sizes","message":""}'
    return rest.replace(b'""', b'"' + b"x" * (size - len(rest)) + b'"')


async def test_bodies_and_streams_over_their_limits_are_refused(service: ServiceFactory) -> None:
    """By what is announced, before it is sent, and by what comes; one byte less is taken."""
    limits = {"limits.request_body_bytes": BODY_BYTES, "limits.streams_per_principal": 2}
    async with service(limits) as one:
        with nothing_stored(one):
            await _refuses_large_bodies(one)
        for request in (
            json_request("POST", RUNS, _body_of(BODY_BYTES)),
            _chunked(_body_of(BODY_BYTES), 7),
        ):
            answer = await exchange(one.address, request)
            assert answer.status == 202, answer
            await one.ended(answer.run_id)
        await _refuses_a_third_stream(one)


async def _refuses_large_bodies(one: Service) -> None:
    json_type = ("Content-Type", "application/json")
    announced = [("Content-Length", str(BODY_BYTES + 1)), json_type]
    check_problem(await exchange(one.address, head("POST", RUNS, announced)), 413, "payload-too-large")
    endless = head("POST", RUNS, [("Content-Length", "9" * 18), json_type]) + b"{" * 10
    check_problem(await exchange(one.address, endless), 413, "payload-too-large")
    for size in (BODY_BYTES + 1, 100 * BODY_BYTES):
        whole = json_request("POST", RUNS, _body_of(size))
        check_problem(await exchange(one.address, whole), 413, "payload-too-large")
        check_problem(await exchange(one.address, _chunked(_body_of(size), 999)), 413, "payload-too-large")
    reason = json_request("POST", f"{RUNS}/x/abort", {"reason": "r" * 2 * BODY_BYTES})
    check_problem(await exchange(one.address, reason), 413, "payload-too-large")


def _chunked(body: bytes, size: int) -> bytes:
    fields = [("Transfer-Encoding", "chunked"), ("Content-Type", "application/json")]
    return head("POST", RUNS, fields) + chunks(body[at : at + size] for at in range(0, len(body), size))


async def _refuses_a_third_stream(one: Service) -> None:
    """Of two places the last one is still given, to a GET or to a POST; a refused POST has stored nothing."""
    one.model.on("hold-streams", [hold("streams"), *reply_text("x")])
    run_id = await one.run("hold-streams", "stream-limit")
    await one.model.until_held("streams")
    first = await one.stream(run_id)
    for _ in range(3):
        async with await one.post_stream("the last place", "stream-place") as second:
            assert second.status == 200, await second.json()
            await second.collect_until_done()
            await second.expect_end()
    second = await one.stream(run_id)
    assert (first.status, second.status) == (200, 200)
    with nothing_stored(one):
        refused = await one.request("GET", f"{RUNS}/{run_id}/events")
        check_problem(refused, 429, "rate-limited")
        answer = await one.post("no place for it", "stream-limit-2", headers={"accept": SSE})
        check_problem(answer, 429, "rate-limited")
        keyed = await one.post("no place for it", "stream-limit-2", "no-place", headers={"accept": SSE})
        check_problem(keyed, 429, "rate-limited")
    second.close()
    one.model.release("streams")
    await first.collect_until_done()
    await one.ended(run_id)
    again = await one.post("no place for it", "stream-limit-2", "no-place")
    assert again.status == 202 and "idempotent-replayed" not in again.headers
    await one.ended(again.run_id)
