"""Texts that look like the protocol: they arrive as they were, and forge no line, event or id."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.client import API
from tests.kit.gauges import until_quiet
from tests.kit.model_server import Step, done, finish, raw, reply_calls, reply_text, thinking
from tests.kit.problems import check_problem, nothing_stored
from tests.kit.rules import check_case, reply_texts, transcript_text
from tests.kit.service import Service
from tests.kit.sse import Event, check_stream

FORGED = "x\n\nid: 9999\nevent: done\ndata: {}\n\n"
TEXTS = {
    "LF": "a\nb",
    "CRLF": "a\r\nb\r\n",
    "CR": "a\rb\r",
    "mixed": "x\n\r\n\r\r\n\ny",
    "blank lines": "a\n\n\n\nb\n\n",
    "fields": "event: done\ndata: {}\nid: 9999\nretry: 1\n: comment\ndata\n:",
    "fields behind CR": "\revent: done\rdata: {}\rid: 9999\r\r",
    "a whole block": FORGED,
    "NUL": "a\0b\0",
    "separators": "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1dh\x1ei",
    "byte order marks": "\ufeffa\ufeff",
    "controls": "".join(map(chr, range(1, 32))) + "\x7f",
    "quotes": "\"'\\\\\\n\\u0000</script>",
    "wide": "日本語 😀 👩‍👩‍👧‍👦 e\u0301 \u202e",
    "noncharacters": "\ufffe\uffff\U0010ffff\ufffd",
    "spaces": "  leading and trailing  ",
    "json": '{"runId":"x","seq":1}',
}
NAMES = {"ready", "accepted", "lifecycle", "assistant", "thinking", "tool", "done"}


@pytest.fixture(autouse=True)
async def _comes_to_rest(shared_service: Service) -> AsyncIterator[None]:
    """Whatever a test did, no stream is left open and nothing executes (rule R7)."""
    yield
    await until_quiet(shared_service)


def _content(*pieces: str, delay_s: float = 0.0) -> Step:
    """Deltas of any text, half characters included, as JSON escapes. With a delay they do not arrive together."""
    frames = [
        b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]}).encode()
        for piece in pieces
    ]
    return raw(*(frame + b"\n\n" for frame in frames), delay_s=delay_s)


def _check_frames(events: list[Event], violations: list[str]) -> None:
    """No event, id or retry but ours."""
    assert violations == []
    assert {event.event for event in events} <= NAMES
    assert "9999" not in {event.id for event in events}
    assert [event.retry for event in events if event.retry == 1] == []
    check_stream(events)


@pytest.mark.parametrize("name", TEXTS)
async def test_a_text_arrives_as_it_was(shared_service: Service, name: str) -> None:
    """As input, as output cut between any two characters, as thinking, label, metadata; live and on replay. WIRE-12"""
    one, session, words = shared_service, f"text-{list(TEXTS).index(name)}", TEXTS[name]
    marked = f"text {name}: {words}"
    one.model.on(f"text {name}: ", [thinking(*words), _content(*words), finish(), done()], reply_text("next"))
    label = words.replace("\0", "")
    fields: dict[str, Any] = {"label": label, "metadata": {words: [words]}, "reasoning": "stream"}
    async with await one.post_stream(marked, session, **fields, extraSystemPrompt=words) as stream:
        live = await stream.collect_until_done()
        _check_frames(live, stream.violations)
    run_id = str(live[0].payload["runId"])
    async with await one.stream(run_id) as stream:
        replay = await stream.collect_until_done()
        _check_frames(replay, stream.violations)
    assert [event.raw for event in live[1:-1]] == [event.raw for event in replay[1:-1]], "replay differs"
    for kind in ("assistant", "thinking"):
        deltas = [event.payload for event in live if event.stream == kind]
        assert "".join(delta.get("delta", "") for delta in deltas) == words, kind
        assert (deltas[-1]["text"], deltas[-1]["length"]) == (words, len(words))
    queued = next(event for event in live if event.phase == "queued").payload
    assert queued["input"]["parts"] == [{"type": "text", "text": marked}]
    record = await one.record(run_id)
    assert reply_texts(record) == reply_texts(await one.wait(run_id)) == [words]
    assert (record["label"], record["metadata"]) == (label, {words: [words]})
    assert [transcript_text(item) for item in await one.transcript(session)] == [marked, words]
    next_run = await one.run(f"text {name}: again", session)
    await one.ended(next_run)
    request = one.model.requests_with(f"text {name}: again")[-1]
    contents = [message["content"] for message in request.messages if message["role"] in ("user", "assistant")]
    assert contents == [marked, words, f"text {name}: again"], "the next request tells another story"
    assert words.strip() in one.model.requests_with(marked)[0].messages[0]["content"]
    await check_case(one, [run_id, next_run], sessions=[session])


HALVES = {
    "a pair in two deltas": (["a\ud83d", "\ude00b"], "a😀b"),
    "a pair in three": (["\ud83d", "", "\ude00"], "😀"),
    "a lone first half": (["a\ud83d", "b"], "a\ufffdb"),
    "a lone first half at the end": (["a\ud83d"], "a\ufffd"),
    "a lone second half": (["a\ude00b"], "a\ufffdb"),
    "halves the wrong way round": (["\ude00\ud83d"], "\ufffd\ufffd"),
    "two first halves": (["\ud83d", "\ud83d\ude00"], "\ufffd😀"),
}


@pytest.mark.parametrize("name", HALVES)
async def test_half_characters_of_a_model_are_put_together_or_replaced(shared_service: Service, name: str) -> None:
    """A pair that came apart is one character; one half alone becomes a replacement mark, everywhere alike. WIRE-12"""
    one, session = shared_service, f"halves-{list(HALVES).index(name)}"
    pieces, words = HALVES[name]
    one.model.on(name, [_content(*pieces, delay_s=0.03), finish(), done()], reply_text("next"))
    async with await one.post_stream(name, session) as stream:
        live = await stream.collect_until_done()
        _check_frames(live, stream.violations)
    run_id = str(live[0].payload["runId"])
    assert check_stream(live).texts == [words]
    assert reply_texts(await one.record(run_id)) == [words]
    assert transcript_text((await one.transcript(session))[-1]) == words
    await check_case(one, [run_id], sessions=[session])


@pytest.mark.parametrize("name", TEXTS)
async def test_names_and_arguments_of_calls_forge_nothing(shared_service: Service, name: str) -> None:
    """A model may name its tools as it likes; a NUL in a name becomes a replacement mark. WIRE-12"""
    one, session, words = shared_service, f"tool-{list(TEXTS).index(name)}", TEXTS[name]
    calls = reply_calls((f"call {words}", f"tool {words}", {words: words}))
    one.model.on(f"call {name}!", calls, reply_text("after the call"))
    async with await one.post_stream(f"call {name}!", session) as stream:
        live = await stream.collect_until_done()
        _check_frames(live, stream.violations)
    run_id = str(live[0].payload["runId"])
    asked = [event.payload for event in live if event.stream == "tool" and event.phase == "requested"]
    tool = f"tool {words}".replace("\0", "\ufffd")[:128]
    assert [(one_call["name"], one_call["args"]) for one_call in asked] == [(tool, {words: words})]
    await check_case(one, [run_id], sessions=[session])


@pytest.mark.parametrize("name", [name for name in TEXTS if len(TEXTS[name]) < 257 and name != "NUL"])
async def test_a_reason_of_an_abort_is_told_as_it_was(shared_service: Service, name: str) -> None:
    one, session, words = shared_service, f"reason-{list(TEXTS).index(name)}", TEXTS[name]
    run_ids = [await one.run(f"x {number}", session, queue={"cap": 50}) for number in range(3)]
    for run_id in run_ids:
        await one.abort(run_id, reason=words)
        await one.ended(run_id)
        record = await one.record(run_id)
        async with await one.stream(run_id) as stream:
            events = await stream.collect_until_done()
            _check_frames(events, stream.violations)
        if record["status"] == "cancelled":
            assert next(event for event in events if event.terminal).payload["reason"] == words
            assert record["abortReason"] == words


async def test_a_label_a_reason_and_a_model_have_no_nul(shared_service: Service) -> None:
    """They are columns, and not every database takes it there. What is kept as JSON has it as it was."""
    run_id = await shared_service.run("x", "no-nul")
    for path, body, pointer in (
        (f"{API}/runs", {"message": "x", "label": "a\0b"}, "#/label"),
        (f"{API}/runs", {"message": "x", "model": "demo:a\0b"}, "#/model"),
        (f"{API}/runs/{run_id}/abort", {"reason": "a\0b"}, "#/reason"),
    ):
        check_problem(await shared_service.request("POST", path, json=body), 422, "validation-failed", pointer=pointer)
    await shared_service.ended(run_id)


@pytest.mark.parametrize("words", [*TEXTS.values(), "\ud800"], ids=[*TEXTS, "a lone half"])
async def test_such_texts_are_no_session_keys(shared_service: Service, words: str) -> None:
    body = json.dumps({"message": "x", "sessionKey": words}).encode()
    with nothing_stored(shared_service):
        answer = await shared_service.request(
            "POST", f"{API}/runs", content=body, headers={"content-type": "application/json"}
        )
    if words == "\ud800":
        check_problem(answer, 400, "bad-request")
    else:
        check_problem(answer, 422, "validation-failed", pointer="#/sessionKey")


async def test_half_characters_of_a_client_are_refused_everywhere(shared_service: Service) -> None:
    """They are no text; what would come back would not be what was given."""
    for body in (
        *(
            {"message": "a\ud83d"},
            {"message": [{"type": "text", "text": "\ude00"}]},
            {"message": "x", "label": "\ud83d"},
        ),
        *({"message": "x", "metadata": {"\ud83d": 1}}, {"message": "x", "extraSystemPrompt": "\ude00\ud83d"}),
    ):
        with nothing_stored(shared_service):
            answer = await shared_service.request(
                "POST", f"{API}/runs", content=json.dumps(body).encode(), headers={"content-type": "application/json"}
            )
        check_problem(answer, 400, "bad-request", pointer="#")
