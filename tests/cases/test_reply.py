"""What a run makes of its model's answer: nothing, blanks, thoughts, calls that nobody offered, silence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.model_server import (
    ModelServer,
    done,
    finish,
    reply_calls,
    reply_text,
    stay_open,
    text,
    thinking,
    tool_call,
)
from tests.kit.rules import check_case, reply_texts
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import check_stream

EMPTY = [finish(), done()]
BLANK = [text(" \n"), text("\t "), finish(), done()]


async def events_of(service: Service, run_id: str) -> Any:
    return check_stream(await (await service.stream(run_id)).collect_until_done())


@pytest.mark.parametrize("nothing", [EMPTY, BLANK], ids=["empty", "blank"])
async def test_an_answer_of_nothing_is_asked_for_once_more(shared_service: Service, nothing: list[Any]) -> None:
    model, session = shared_service.model, f"again-{len(nothing)}"
    model.on("say it", nothing, reply_text("said"))
    run_id = await shared_service.run(f"say it [s:{session}]", session)
    record = await shared_service.ended(run_id)
    assert (record["status"], reply_texts(record)) == ("succeeded", ["said"])
    assert len(model.requests_of(session)) == 2
    assert (await events_of(shared_service, run_id)).texts == ["said"], "blanks that were told are taken back"
    assert [entry["role"] for entry in await shared_service.transcript(session)] == ["user", "assistant"]
    await check_case(shared_service, [run_id], sessions=[session])


@pytest.mark.parametrize("nothing", [EMPTY, BLANK], ids=["empty", "blank"])
async def test_two_answers_of_nothing_are_a_failure_and_leave_no_empty_entry(
    shared_service: Service, nothing: list[Any]
) -> None:
    model, session = shared_service.model, f"nothing-{len(nothing)}"
    model.on("say it", nothing)
    run_id = await shared_service.run(f"say it [s:{session}]", session)
    record = await shared_service.ended(run_id)
    assert (record["status"], record["error"]["code"]) == ("failed", "empty-reply")
    assert len(model.requests_of(session)) == 2
    assert [entry["role"] for entry in await shared_service.transcript(session)] == ["user"]
    await check_case(shared_service, [run_id], sessions=[session])


async def test_silence_is_fine_where_no_reply_is_required(shared_service: Service) -> None:
    model = shared_service.model
    model.on("say nothing", EMPTY)
    run_id = await shared_service.run("say nothing [s:silent]", "silent", replyRequired=False)
    record = await shared_service.ended(run_id)
    assert (record["status"], record["outcome"], record["reply"]["payloads"]) == ("succeeded", "silent", [])
    assert len(model.requests_of("silent")) == 1
    await check_case(shared_service, [run_id], sessions=["silent"])


@pytest.mark.parametrize(("reasoning", "told", "replied"), [("off", 0, 0), ("on", 0, 1), ("stream", 2, 1)])
async def test_thoughts_are_shown_as_far_as_they_were_asked_for(
    shared_service: Service, reasoning: str, told: int, replied: int
) -> None:
    session = f"thoughts-{reasoning}"
    shared_service.model.on("think", [thinking("let me "), thinking("see"), text("seen"), finish(), done()])
    run_id = await shared_service.run(f"think [s:{session}]", session, reasoning=reasoning)
    record = await shared_service.ended(run_id)
    checked = await events_of(shared_service, run_id)
    assert sum(event.stream == "thinking" and "delta" in event.payload for event in checked.events) in (told, told // 2)
    kinds = [payload["kind"] for payload in record["reply"]["payloads"]]
    assert kinds == ["reasoning", "text"] if replied else kinds == ["text"]
    parts = (await shared_service.transcript(session))[-1]["parts"]
    assert [part["type"] for part in parts] == ["thinking", "text"], "the transcript has them whatever is shown"
    await check_case(shared_service, [run_id], sessions=[session])


async def test_calls_of_tools_that_do_not_exist_are_answered_in_pairs(shared_service: Service) -> None:
    """The strict model refuses a badly paired history; both calls get an error result, in order."""
    model = shared_service.model
    model.on(
        "use tools",
        reply_calls(("c1", "nosuch", {"path": "a"}), ("c2", "neither", {}), words="looking"),
        reply_text("without tools then"),
    )
    run_id = await shared_service.run("use tools [s:calls]", "calls")
    record = await shared_service.ended(run_id)
    assert (record["status"], reply_texts(record)) == ("succeeded", ["without tools then"])
    entries = await shared_service.transcript("calls")
    assert [entry["role"] for entry in entries] == ["user", "assistant", "tool", "tool", "assistant"]
    asked = [part["toolCallId"] for part in entries[1]["parts"] if part["type"] == "toolCall"]
    assert [entry["parts"][0]["toolCallId"] for entry in entries[2:4]] == asked
    assert all(entry["parts"][0]["isError"] for entry in entries[2:4])
    phases = (await events_of(shared_service, run_id)).phases
    assert phases.count("tool:requested") == phases.count("tool:end") == 2
    assert "tool:start" not in phases, "nothing was started"
    await check_case(shared_service, [run_id], sessions=["calls"])


async def test_broken_arguments_are_answered_and_never_sent_back_broken(shared_service: Service) -> None:
    model = shared_service.model
    model.on("break it", [tool_call("c1", "read", '{"path": "a'), finish("tool_calls"), done()], reply_text("well"))
    run_id = await shared_service.run("break it [s:broken]", "broken")
    record = await shared_service.ended(run_id)
    assert record["status"] in ("succeeded", "failed"), record
    await check_case(shared_service, [run_id], sessions=["broken"])


@pytest.mark.parametrize("before", [[], [text("so "), text("far")]], ids=["before the first token", "in the middle"])
async def test_a_model_that_falls_silent_ends_the_run_with_the_limit_named(
    service: ServiceFactory, model: ModelServer, before: list[Any]
) -> None:
    model.on("hang", [*before, stay_open(60)])
    async with service({"providers.test.timeout_seconds": 0.5}) as one:
        run_id = await one.run("hang [s:a]", "a")
        record = await one.ended(run_id)
        assert (record["status"], record["error"]["code"]) == ("failed", "model-idle-timeout")
        assert "0.5 s" in record["error"]["message"]
        await model.until(lambda: model.requests[0].disconnected_at is not None, "the closed connection")
        last = (await one.transcript("a"))[-1]
        if before:
            assert (last["role"], last["aborted"], last["parts"][0]["text"]) == ("assistant", True, "so far")
        await check_case(one, [run_id], sessions=["a"])
