"""How answers end: complete, cut off, broken, as an error, or never begun. One truthful end for each."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.kit.model_server import ModelServer
from tests.kit.steps import (
    CHUNK_BASE,
    Step,
    Writes,
    chunk_frame,
    data,
    delta,
    done,
    end,
    finish,
    frame,
    headers,
    pause,
    raw,
    reset,
    stay_open,
    text,
    tool_call,
    usage,
)
from tests.unit.test_providers_support import told_by


@pytest.mark.parametrize("said", [text("some ", "text"), tool_call("c", "weather", "{}")])
async def test_an_end_without_finish_reason_and_end_mark_is_an_error(model: ModelServer, said: Writes) -> None:
    told = await told_by(model, said, end())
    assert told.failed("provider-bad-response").retryable
    assert not told.calls


async def test_either_of_the_two_completes(model: ModelServer) -> None:
    assert (await told_by(model, text("a"), finish(), end())).finished.stop_reason == "stop"
    told = await told_by(model, text("b"), done())
    assert (told.text, told.finished.stop_reason) == ("b", "stop")
    assert (await told_by(model, tool_call("c", "weather", "{}"), done())).finished.stop_reason == "tool"


@pytest.mark.parametrize("behind", [stay_open(30), reset()])
async def test_nothing_behind_the_end_mark_matters(model: ModelServer, behind: Step) -> None:
    told = await told_by(model, text("all"), finish(), usage(), done(), behind)
    assert told.text == "all"
    assert told.finished.usage.input_tokens == 10
    assert told.seconds < 1


async def test_garbage_behind_the_end_mark_does_not_matter(model: ModelServer) -> None:
    told = await told_by(model, text("all"), finish(), raw(b"data: [DONE]\n\ndata: {broken\n\nwhat?"), stay_open(30))
    assert told.text == "all"
    assert told.finished.stop_reason == "stop"


async def test_a_reset_behind_the_finish_reason_does_not_matter(model: ModelServer) -> None:
    told = await told_by(model, text("all"), finish(), reset())
    assert (told.text, told.finished.stop_reason) == ("all", "stop")


async def test_a_line_cut_off_behind_the_finish_reason_does_not_matter(model: ModelServer) -> None:
    told = await told_by(model, text("all"), finish(), raw(frame({**CHUNK_BASE, "choices": []})[:30]), end())
    assert (told.text, told.finished.stop_reason) == ("all", "stop")


async def test_silence_behind_the_finish_reason_does_not_last(
    model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.providers.transport.FINISH_GRACE_S", 0.2)
    told = await told_by(model, text("all"), finish(), stay_open(30))
    assert told.finished.stop_reason == "stop"
    assert 0.2 <= told.seconds < 2


async def test_a_reset_in_the_middle_is_an_error_behind_the_text(model: ModelServer) -> None:
    told = await told_by(model, text("half "), pause(0.05), reset())
    assert told.text == "half "
    assert told.failed("provider-bad-response").retryable


@pytest.mark.parametrize("behind", [b"", b"\n\n" + chunk_frame({"content": "more"})])
async def test_a_broken_event_is_an_error_behind_the_text(model: ModelServer, behind: bytes) -> None:
    told = await told_by(
        model, raw(chunk_frame({"content": "half "}) + b'data: {"choices": [{"de\n\n' + behind), done()
    )
    assert told.text == "half "
    assert told.failed("provider-bad-response").retryable


async def test_bytes_that_are_no_characters_are_a_broken_event(model: ModelServer) -> None:
    told = await told_by(model, raw(b'data: {"choices":[{"delta":{"content":"\xff\xfe"}}]}\n\n'), finish(), done())
    told.failed("provider-bad-response")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"message": "boom " * 50, "type": "server_error"}, "provider-error"),
        ({"message": "x", "type": "rate_limit_error"}, "provider-rate-limited"),
        ({"message": "x", "code": 502}, "provider-error"),
        ({"message": "x", "code": 429}, "provider-rate-limited"),
        ({"message": "This model's maximum context length is 10 tokens", "code": None}, "context-overflow"),
        ({"message": "x", "type": "overloaded_error"}, "provider-overloaded"),
        ("just text", "provider-error"),
    ],
)
async def test_an_error_in_the_stream_is_the_providers(model: ModelServer, error: Any, code: str) -> None:
    told = await told_by(model, raw(chunk_frame({"content": "half "}) + frame({"error": error})), done())
    assert told.text == "half "
    assert "boom" not in str(told.failed(code))


@pytest.mark.parametrize(
    "step",
    [
        raw(b'event: error\ndata: {"message": "no"}\n\n'),
        data({"object": "error", "message": "no", "code": 400, "type": "BadRequestError"}),
        delta({}, "error"),
    ],
)
async def test_other_forms_of_an_error_in_the_stream(model: ModelServer, step: Step) -> None:
    told = await told_by(model, text("half"), step, done())
    assert told.error is not None
    assert told.error.code in ("provider-error", "provider-refused")


# bodies that are no event stream


@pytest.mark.parametrize(
    ("media_type", "body"),
    [
        ("text/html", b"<html><body>sign in</body></html>"),
        ("application/json", orjson.dumps({"id": "x", "choices": [{"message": {"content": "whole"}}]})),
        ("text/event-stream", b"<!doctype html>\n<html>\n"),
        ("text/plain", b"upstream connect error\n"),
        ("text/event-stream", b"no end of line"),
    ],
)
async def test_a_body_that_is_no_event_stream(model: ModelServer, media_type: str, body: bytes) -> None:
    told = await told_by(model, headers(200, {"content-type": media_type}), raw(body))
    assert not told.failed("provider-bad-response").retryable
    assert not told.parts


async def test_an_empty_body_is_an_error(model: ModelServer) -> None:
    told = await told_by(model, headers(200, {"content-type": "text/event-stream"}), end())
    assert told.failed("provider-bad-response").retryable


async def test_an_error_object_in_place_of_a_stream_says_what_it_is(model: ModelServer) -> None:
    body = orjson.dumps({"error": {"message": "slow down", "code": "rate_limit_exceeded"}})
    told = await told_by(model, headers(200, {"content-type": "application/json"}), raw(body))
    told.failed("provider-rate-limited")


async def test_a_line_without_end_is_bounded(model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.providers.sse.EVENT_BYTES_MAX", 1000)
    told = await told_by(model, raw(b"data: " + b"x" * 2000), stay_open(30))
    told.failed("provider-bad-response")
    assert told.seconds < 2
