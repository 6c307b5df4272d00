"""However a run ends: once, told to everybody with the same words, and nothing of it comes behind."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from tests.kit.gauges import until_quiet
from tests.kit.model_server import Reply, cut, data, done, end, finish, hold, pause, raw, reply_text, reset, role, text
from tests.kit.rules import check_case
from tests.kit.service import Service
from tests.kit.sse import Stream, check_stream

WORDS = [role(), text("some", " words", " of", " it")]
BROKEN: dict[str, tuple[Reply, str]] = {
    "reset-in-the-text": ([*WORDS, reset()], "provider-bad-response"),
    "cut-in-the-text": ([*WORDS, cut()], "provider-bad-response"),
    "ended-without-an-end": ([*WORDS, end()], "provider-bad-response"),
    "error-object": ([*WORDS, data({"error": {"message": "no"}}), hold("never")], "provider-error"),
    "error-object-and-more": ([*WORDS, data({"error": {"message": "no"}}), *reply_text("too late")], "provider-error"),
    "broken-json": ([*WORDS, raw(b"data: {no\n\n"), *reply_text("too late")], "provider-bad-response"),
    "time-limit": ([*WORDS, hold("never")], "timed-out"),
    "time-limit-in-full-flow": ([role(), text(*["word "] * 50_000, delay_s=0.001)], "timed-out"),
}


async def test_a_run_that_fails_behind_text_has_one_terminal_event_and_nothing_behind_it(
    shared_service: Service,
) -> None:
    """END-01"""

    async def one_kind(kind: str, reply: Reply, code: str) -> None:
        session = f"once-{kind}"
        shared_service.model.on(f"[s:{session}]", reply)
        limit = {"timeoutSeconds": 0.5} if code == "timed-out" else {}
        async with await shared_service.post_stream(f"hello [s:{session}]", session, **limit) as stream:
            checked = check_stream(await stream.collect_until_done())
            assert await stream.expect_end() == [], kind
        terminals = [event for event in stream.events if event.terminal]
        assert [event.phase for event in terminals] == ["error"], kind
        assert checked.outcome == code, (kind, checked.outcome)
        assert terminals[0].payload["final"] is True
        assert checked.texts or code == "timed-out", f"{kind}: what came before the failure was not told"
        assert all("too late" not in words for words in checked.texts), kind
        await check_case(shared_service, [stream.events[0].payload["runId"]], sessions=[session])

    await asyncio.gather(*(one_kind(kind, reply, code) for kind, (reply, code) in BROKEN.items()))
    await until_quiet(shared_service)


async def test_four_kinds_of_end_are_told_apart_by_fields_alone_and_alike_everywhere(shared_service: Service) -> None:
    """END-04"""
    session, model = "four-ends", shared_service.model
    model.on(f"natural [s:{session}]", reply_text("the whole answer"))
    model.on(f"aborted [s:{session}]", [*WORDS, hold("never")])
    model.on(f"limit [s:{session}]", [*WORDS, hold("never")])
    model.on(f"length [s:{session}]", [*WORDS, finish("length"), done()])
    run_ids = {
        "natural": await shared_service.run(f"natural [s:{session}]", session),
        "length": await shared_service.run(f"length [s:{session}]", session),
        "limit": await shared_service.run(f"limit [s:{session}]", session, timeoutSeconds=0.5),
        "aborted": await shared_service.run(f"aborted [s:{session}]", session),
    }
    await model.until(lambda: bool(model.requests_with("aborted [s:four-ends]")), "the last run's request", 30)
    await shared_service.abort(run_ids["aborted"])

    words = {name: await _words(shared_service, run_id) for name, run_id in run_ids.items()}
    # status; code or outcome; stop reason; the ledger's code
    assert words == {
        "natural": ("succeeded", "completed", "stop", "completed"),
        "length": ("succeeded", "completed", "length", "length"),
        "limit": ("timed_out", "timed-out", "aborted", "timed-out"),
        "aborted": ("cancelled", "cancelled", "aborted", "cancelled"),
    }
    await check_case(shared_service, run_ids.values(), sessions=[session])
    await until_quiet(shared_service)


async def _words(one: Service, run_id: str) -> tuple[Any, ...]:
    """What the terminal event, the wait, `done`, the record and the ledger say, which must be the same."""
    record = await one.ended(run_id)
    waited = await one.wait(run_id, 0)
    async with await one.stream(run_id) as stream:
        checked = check_stream(await stream.collect_until_done())
    assert checked.terminal is not None and checked.done is not None
    told = checked.terminal.payload
    (ledger,) = [row for row in await one.audit(runId=run_id) if row["action"] == "run.end"]
    assert waited["status"] == {"succeeded": "ok", "timed_out": "timeout", "cancelled": "error"}[record["status"]]
    assert checked.done.payload == waited
    assert told["status"] == record["status"] == ledger["status"]
    assert told["stopReason"] == record["stopReason"] == waited["stopReason"]
    assert told.get("outcome") == record["outcome"] == waited["outcome"]
    assert told.get("error") == record["error"]
    assert (told["phase"] == "error") == (record["error"] is not None)
    assert told["startedAt"] == record["startedAt"] and told["endedAt"] == record["endedAt"]
    return record["status"], checked.outcome, record["stopReason"], ledger["code"]


async def test_readers_get_the_end_though_another_leaves_in_the_moment_of_the_last_word(
    shared_service: Service,
) -> None:
    """END-08"""
    for start in range(0, 100, 10):
        await asyncio.gather(*(_one_of_three_leaves(shared_service, f"leaves-{n}") for n in range(start, start + 10)))
    await check_case(shared_service, sessions=["leaves-0"])
    await until_quiet(shared_service)


async def _one_of_three_leaves(one: Service, session: str) -> None:
    one.model.on(
        f"[s:{session}]", [role(), text("first "), hold(session), text("and last"), pause(0), finish(), done()]
    )
    run_id = await one.run(f"hello [s:{session}]", session)
    streams = [await one.stream(run_id) for _ in range(3)]
    await one.model.until_held(session, 1, 30)
    leaving = random.choice(streams)
    staying = [asyncio.create_task(stream.collect_until_done()) for stream in streams if stream is not leaving]
    one.model.release(session)
    await _leave_at_the_last_word(leaving)
    for events in await asyncio.gather(*staying):
        assert check_stream(events).texts == ["first and last"]
    for stream in streams:
        stream.close()
    assert (await one.record(run_id))["status"] == "succeeded"


async def _leave_at_the_last_word(stream: Stream) -> None:
    await stream.until(lambda event: event.payload.get("delta") == "and last" or event.terminal)
    random.choice([stream.abort, stream.close])()
