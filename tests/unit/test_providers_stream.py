"""Streams of compatible servers, as odd as they come, through the whole stack down to a real socket."""

from __future__ import annotations

import gzip
from typing import Any

import orjson
import pytest

from app.providers.contract import ArgsDelta, ModelProvider, TextDelta, ThinkingDelta, ThinkingDetail
from tests.kit.model_server import ModelServer
from tests.kit.steps import (
    CHUNK_BASE,
    Step,
    Writes,
    call_piece,
    chunk_frame,
    comment,
    data,
    delta,
    done,
    end,
    finish,
    frame,
    headers,
    pause,
    raw,
    recut,
    reply_calls,
    reply_text,
    reset,
    role,
    stay_open,
    text,
    thinking,
    tool_call,
    usage,
)
from tests.unit.test_providers_support import TOOL, ByteServer, Told, asking, provider_at, tell

SEPARATORS = "a\u2028b\u2029c\u0085d\x0be\x0cf"
MANY_LANGUAGES = "日本語 русский 👩‍👩‍👧 ok"


async def told_by(model: ModelServer, *steps: Step, **fields: Any) -> Told:
    model.script(list(steps))
    async with provider_at(model.base_url) as provider:
        return await tell(provider, asking(tools=(TOOL,), **fields))


# text, thinking, usage


async def test_text_comes_as_it_was_sent(model: ModelServer) -> None:
    told = await told_by(model, *reply_text("one two three", deltas=5, delay_s=0.005))
    assert told.text == "one two three"
    assert len([part for part in told.parts if isinstance(part, TextDelta)]) == 5
    assert told.finished.stop_reason == "stop"
    assert told.finished.model == "scripted"
    assert told.finished.detail == {"finishReason": "stop", "responseId": "chatcmpl-scripted"}


async def test_the_first_delta_does_not_wait_for_the_second(model: ModelServer) -> None:
    model.script([text("first"), pause(5), text("second"), finish(), done()])
    async with provider_at(model.base_url) as provider:
        stream = provider.stream(asking())
        assert await anext(stream) == TextDelta("first")
        await stream.aclose()  # type: ignore[attr-defined]


async def test_what_arrived_together_is_joined(model: ModelServer) -> None:
    deltas = [f" {number}" for number in range(500)]
    told = await told_by(model, raw(b"".join(chunk_frame({"content": piece}) for piece in deltas)), finish(), done())
    assert told.text == "".join(deltas)
    assert len(told.parts) < 50


async def test_usage_is_told_and_unknown_counts_stay_unknown(model: ModelServer) -> None:
    told = await told_by(model, text("x"), finish(), usage(11, 7, cached=3), done())
    used = told.finished.usage
    assert (used.input_tokens, used.output_tokens, used.cache_read_tokens, used.cache_write_tokens) == (11, 7, 3, None)
    assert (used.cost_usd, used.model_calls) == (None, 1)


@pytest.mark.parametrize(
    ("given", "known"),
    [
        (None, (None, None, None)),
        ({"prompt_tokens": 4}, (4, None, None)),
        ({"prompt_tokens": "many", "completion_tokens": -1, "prompt_tokens_details": None}, (None, None, None)),
        ({"prompt_tokens": 4, "completion_tokens": 0, "prompt_cache_hit_tokens": 2}, (4, 0, 2)),
    ],
)
async def test_partial_usage(model: ModelServer, given: Any, known: tuple[int | None, ...]) -> None:
    told = await told_by(model, text("x"), finish(), data({**CHUNK_BASE, "choices": [], "usage": given}), done())
    used = told.finished.usage
    assert (used.input_tokens, used.output_tokens, used.cache_read_tokens) == known


async def test_usage_is_asked_for(model: ModelServer) -> None:
    await told_by(model, *reply_text("x"))
    assert model.requests[0].body["stream_options"] == {"include_usage": True}


async def test_empty_choices_null_deltas_and_repeated_roles(model: ModelServer) -> None:
    told = await told_by(
        model,
        data({**CHUNK_BASE, "choices": [], "prompt_filter_results": [{}]}),
        role(),
        text("a"),
        data({**CHUNK_BASE, "choices": [{"index": 0, "delta": None, "finish_reason": None}]}),
        data({**CHUNK_BASE, "choices": None}),
        delta({"role": "assistant", "content": "b", "tool_calls": None}),
        delta({"content": None}),
        finish(),
        usage(),
        done(),
    )
    assert told.text == "ab"
    assert told.finished.usage.input_tokens == 10


async def test_chunks_without_their_frame_of_fields(model: ModelServer) -> None:
    told = await told_by(model, data({"choices": [{"delta": {"content": "bare"}}]}), done())
    assert told.text == "bare"
    assert told.finished.stop_reason == "stop"


async def test_other_choices_are_not_mixed_in(model: ModelServer) -> None:
    second = {"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}
    told = await told_by(model, text("yes"), data({**CHUNK_BASE, "choices": [second]}), finish(), done())
    assert (told.text, told.finished.stop_reason) == ("yes", "stop")


async def test_content_as_a_list_of_parts(model: ModelServer) -> None:
    content = [{"type": "text", "text": "a"}, {"type": "reference", "ids": [1]}, {"type": "text", "text": "b"}]
    told = await told_by(model, delta({"content": content}), finish(), done())
    assert told.text == "ab"


async def test_leading_white_space_is_text(model: ModelServer) -> None:
    told = await told_by(model, text("\n\n", "  x"), finish(), done())
    assert told.text == "\n\n  x"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_is_thinking_and_not_text(model: ModelServer, name: str) -> None:
    told = await told_by(model, thinking("let ", "me", name=name), text("done"), finish(), done())
    assert (told.thinking, told.text) == ("let me", "done")
    at = told.parts.index(ThinkingDetail({"provider": "local", "field": name}))
    assert all(isinstance(part, ThinkingDelta) for part in told.parts[:at])


async def test_reasoning_in_both_fields_is_told_once(model: ModelServer) -> None:
    told = await told_by(model, delta({"reasoning": "x", "reasoning_content": "x"}), text("y"), finish(), done())
    assert told.thinking == "x"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
async def test_reasoning_in_tags_is_thinking_however_it_is_cut(model: ModelServer, size: int) -> None:
    whole = " <think>\nis a < b? </thin no\n</think>\n\nyes, <think> is a tag"
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    told = await told_by(model, text(*pieces, delay_s=0.001), finish(), done())
    assert told.thinking == "\nis a < b? </thin no\n"
    assert told.text == "yes, <think> is a tag"
    assert not any(isinstance(part, ThinkingDetail) for part in told.parts)


@pytest.mark.parametrize("whole", ["<thin", "a <think>b</think>", "<", "<thought>x"])
async def test_what_only_looks_like_a_tag_is_text(model: ModelServer, whole: str) -> None:
    told = await told_by(model, text(*whole, delay_s=0.001), finish(), done())
    assert (told.text, told.thinking) == (whole, "")


async def test_a_refusal_is_shown_and_named(model: ModelServer) -> None:
    told = await told_by(model, delta({"refusal": "I will "}), delta({"refusal": "not"}), finish(), done())
    assert (told.text, told.finished.stop_reason) == ("I will not", "content-filter")


# bytes


@pytest.mark.parametrize("escape", [True, False])
async def test_separators_are_content(model: ModelServer, escape: bool) -> None:
    line = orjson.dumps({"content": SEPARATORS})
    if escape:
        line = line.decode().encode("ascii", "backslashreplace").replace(b"\\x85", b"\\u0085")
    args = orjson.dumps({"city": SEPARATORS}).decode()
    told = await told_by(
        model,
        raw(b'data: {"choices":[{"index":0,"delta":' + line + b"}]}\n\n"),
        tool_call("c1", "weather", args),
        finish("tool_calls"),
        done(),
    )
    assert told.text == SEPARATORS
    assert told.calls[0].args == args


async def test_characters_cut_apart_on_the_wire(model: ModelServer) -> None:
    told = await told_by(model, recut(text(MANY_LANGUAGES), finish(), done(), size=1))
    assert told.text == MANY_LANGUAGES


async def test_characters_cut_apart_into_two_deltas(model: ModelServer) -> None:
    first, second = (
        rb'data: {"choices":[{"delta":{"content":"x\ud83d"}}]}',
        rb'data: {"choices":[{"delta":{"content":"\ude00y"}}]}',
    )
    apart = await told_by(model, raw(first + b"\n\n", second + b"\n\n", delay_s=0.02), finish(), done())
    assert apart.text == "x😀y"
    together = await told_by(model, raw(first + b"\n\n" + second + b"\n\n"), finish(), done())
    assert together.text == "x😀y"


async def test_half_a_character_at_the_end_is_marked(model: ModelServer) -> None:
    told = await told_by(
        model, raw(rb'data: {"choices":[{"delta":{"content":"x\ud83d"}}]}' + b"\n\n"), finish(), done()
    )
    assert told.text == "x\ufffd"


def _styled(style: str) -> list[Step]:
    whole = b"".join(chunk for step in (text("one", "two"), finish(), done()) for chunk in step.chunks)
    match style:
        case "no space":
            return [raw(whole.replace(b"data: ", b"data:"))]
        case "crlf":
            return [recut(Writes([whole.replace(b"\n", b"\r\n")]), size=3)]
        case "cr":
            return [recut(Writes([whole.replace(b"\n", b"\r")]), size=5)]
        case "bom":
            return [recut(Writes([b"\xef\xbb\xbf" + whole]), size=2)]
        case "comments":
            return [comment(), raw(whole.replace(b"data: ", b": x\n:\ndata: ")), comment()]
        case "other fields":
            return [raw(whole.replace(b"data: ", b"id: 7\nretry: 10\nevent: message\nunknown\ndata: "))]
        case "no blank lines":
            return [raw(whole.replace(b"\n\n", b"\n"))]
        case "split over data lines":
            return [raw(whole.replace(b',"choices"', b',\ndata: "choices"'))]
        case "no end of the last line":
            return [raw(whole.rstrip())]
        case "one byte at a time":
            return [recut(Writes([whole]), size=1)]
    raise AssertionError(style)


@pytest.mark.parametrize(
    "style",
    ["no space", "crlf", "cr", "bom", "comments", "other fields", "no blank lines", "split over data lines",
     "no end of the last line", "one byte at a time"],
)  # fmt: skip
async def test_styles_of_event_streams(model: ModelServer, style: str) -> None:
    told = await told_by(model, *_styled(style))
    assert told.text == "onetwo"
    assert told.finished.stop_reason == "stop"


async def test_a_body_that_is_encoded_although_nobody_asked(model: ModelServer) -> None:
    body = b"".join(chunk for step in (text("packed"), finish(), done()) for chunk in step.chunks)
    fields = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    told = await told_by(model, headers(200, fields), raw(gzip.compress(body)))
    assert told.text == "packed"
    assert model.requests[0].headers["accept-encoding"] == "identity"


async def test_a_server_that_names_no_content_type() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    body = chunk_frame({"content": "plain"}) + b"data: [DONE]\n\n"
    async with ByteServer([head, body]).running() as server, provider_at(server.url) as provider:
        assert (await tell(provider)).text == "plain"


# tool calls


def _pairs(told: Told) -> list[tuple[str, str, str]]:
    return [(call.tool_call_id, call.name, call.args) for call in told.calls]


async def test_a_call_is_told_whole_and_while_it_is_written(model: ModelServer) -> None:
    told = await told_by(
        model,
        text("so: "),
        tool_call("c1", "weather", '{"city": "Ulm"}', pieces=4, delay_s=0.01),
        finish("tool_calls"),
        done(),
    )
    assert _pairs(told) == [("c1", "weather", '{"city": "Ulm"}')]
    assert told.args_of("c1") == '{"city": "Ulm"}'
    assert len([part for part in told.parts if isinstance(part, ArgsDelta)]) > 1
    assert told.finished.stop_reason == "tool"


async def test_a_call_without_arguments(model: ModelServer) -> None:
    told = await told_by(model, tool_call("c1", "now", ""), finish("tool_calls"), done())
    assert _pairs(told) == [("c1", "now", "{}")]


async def test_arguments_are_as_the_model_wrote_them(model: ModelServer) -> None:
    told = await told_by(model, tool_call("c1", "weather", '{"city": '), finish("tool_calls"), done())
    assert _pairs(told) == [("c1", "weather", '{"city": ')]


A, B = '{"city": "A", "n": {}}', '{"city": "B"}'


def _oddly(style: str) -> list[Step]:
    match style:
        case "two on one index":
            return [tool_call("a", "weather", A, 0), tool_call("b", "weather", B, 0)]
        case "no index":
            return [tool_call("a", "weather", A, None, pieces=3), tool_call("b", "weather", B, None, pieces=3)]
        case "with and without index":
            return [tool_call("a", "weather", A, 0, pieces=3), tool_call("b", "weather", B, None, pieces=2)]
        case "interleaved":
            heads = [call_piece(0, call_id="a", name="weather"), call_piece(1, call_id="b", name="weather")]
            cut = [call_piece(at % 2, args=(A, B)[at % 2][at // 2 * 6 : at // 2 * 6 + 6]) for at in range(8)]
            return [*heads, *cut]
        case "tail on another index":
            return [
                tool_call("a", "weather", A, 0),
                call_piece(0, call_id="b", name="weather", args=""),
                call_piece(1, args=B[:4]),
                call_piece(1, args=B[4:]),
            ]
        case "id on every piece":
            return [call_piece(at, call_id="ab"[at], name="weather" if n == 0 else None, args=half)
                    for at, whole in enumerate((A, B)) for n, half in enumerate((whole[:7], whole[7:]))]  # fmt: skip
        case "id and name on every piece":
            return [call_piece(at, call_id="ab"[at], name="weather", args=half)
                    for at, whole in enumerate((A, B)) for half in (whole[:7], whole[7:])]  # fmt: skip
        case "id and tail, no index":
            return [call_piece(None, call_id="ab"[at], name="weather" if n == 0 else None, args=half)
                    for n in range(2) for at, whole in enumerate((A, B)) for half in (whole[n * 7 : n * 7 + 7 if n == 0 else None],)]  # fmt: skip
        case "a new id on every piece":
            return [
                call_piece(0, call_id="a", name="weather", args=A[:5]),
                call_piece(0, call_id="x1", args=A[5:]),
                call_piece(1, call_id="b", name="weather", args=B[:5]),
                call_piece(1, call_id="x2", args=B[5:]),
            ]
    raise AssertionError(style)


@pytest.mark.parametrize(
    "style",
    ["two on one index", "no index", "with and without index", "interleaved", "tail on another index",
     "id on every piece", "id and name on every piece", "id and tail, no index", "a new id on every piece"],
)  # fmt: skip
@pytest.mark.parametrize("together", [False, True])
async def test_odd_numbering_keeps_calls_apart(model: ModelServer, style: str, together: bool) -> None:
    steps: list[Step] = _oddly(style)
    if together:
        steps = [raw(b"".join(chunk for step in steps if isinstance(step, Writes) for chunk in step.chunks))]
    told = await told_by(model, *steps, finish("tool_calls"), done())
    assert _pairs(told) == [("a", "weather", A), ("b", "weather", B)]
    assert (told.args_of("a"), told.args_of("b")) == (A, B)


@pytest.mark.parametrize("indices", [(0, 1), (0, 0), (None, None)])
async def test_one_id_for_two_calls_becomes_two(model: ModelServer, indices: tuple[int | None, int | None]) -> None:
    told = await told_by(
        model,
        tool_call("same", "weather", A, indices[0]),
        tool_call("same", "weather", B, indices[1]),
        finish("tool_calls"),
        done(),
    )
    assert _pairs(told) == [("same", "weather", A), ("same_2", "weather", B)]


async def test_one_id_for_two_calls_in_pieces(model: ModelServer) -> None:
    told = await told_by(
        model,
        call_piece(0, call_id="same", name="weather", args=A[:4]),
        call_piece(1, call_id="same", name="weather", args=B[:4]),
        call_piece(0, call_id="same", args=A[4:]),
        call_piece(1, call_id="same", args=B[4:]),
        finish("tool_calls"),
        done(),
    )
    assert [call.args for call in told.calls] == [A, B]


async def test_calls_without_ids_get_their_own(model: ModelServer) -> None:
    told = await told_by(
        model,
        call_piece(0, name="weather", args=A),
        call_piece(0, name="weather", args=B),
        call_piece(1, name="other", args="{}"),
        finish("stop"),
        done(),
    )
    assert [(call.name, call.args) for call in told.calls] == [("weather", A), ("weather", B), ("other", "{}")]
    ids = {call.tool_call_id for call in told.calls}
    assert len(ids) == 3
    assert all(one.startswith("call_") for one in ids)


async def test_arguments_as_an_object(model: ModelServer) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": {"city": "Ulm"}}}
    told = await told_by(model, delta({"tool_calls": [call]}), finish("tool_calls"), done())
    assert _pairs(told) == [("c1", "weather", '{"city":"Ulm"}')]


async def test_a_piece_of_no_call_is_an_error(model: ModelServer) -> None:
    told = await told_by(model, call_piece(0, args='{"x"'), finish("tool_calls"), done())
    assert told.failed("provider-bad-response").retryable
    assert not told.calls


@pytest.mark.parametrize(
    ("reason", "with_call", "stop"),
    [
        ("stop", True, "tool"),
        ("tool_calls", False, "stop"),
        ("length", True, "length"),
        ("length", False, "length"),
        ("MAX_TOKENS", False, "length"),
        ("content_filter", False, "content-filter"),
        ("eos_token", False, "stop"),
    ],
)
async def test_finish_reasons(model: ModelServer, reason: str, with_call: bool, stop: str) -> None:
    said = tool_call("c", "weather", A) if with_call else text("x")
    told = await told_by(model, said, finish(reason), done())
    assert told.finished.stop_reason == stop
    assert told.finished.detail["finishReason"] == reason


# ends


@pytest.mark.parametrize("said", [text("some ", "text"), tool_call("c", "weather", A)])
async def test_an_end_without_finish_reason_and_end_mark_is_an_error(model: ModelServer, said: Writes) -> None:
    told = await told_by(model, said, end())
    assert told.failed("provider-bad-response").retryable
    assert not told.calls


async def test_either_of_the_two_completes(model: ModelServer) -> None:
    assert (await told_by(model, text("a"), finish(), end())).finished.stop_reason == "stop"
    told = await told_by(model, text("b"), done())
    assert (told.text, told.finished.stop_reason) == ("b", "stop")
    assert (await told_by(model, tool_call("c", "weather", A), done())).finished.stop_reason == "tool"


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


# connections


async def test_a_connection_is_used_again(model: ModelServer) -> None:
    model.default(lambda _: reply_text("again"))
    async with provider_at(model.base_url) as provider:
        for _ in range(5):
            assert (await tell(provider)).text == "again"
            assert model.connections == 1


async def test_many_calls_at_once(model: ModelServer) -> None:
    import asyncio  # noqa: PLC0415

    model.default(lambda request: reply_text(request.last_user_text, deltas=20, delay_s=0.002))
    async with provider_at(model.base_url) as provider:
        told = await asyncio.gather(*(tell(provider, asking(f"message {n} of many")) for n in range(60)))
    assert [one.text for one in told] == [f"message {n} of many" for n in range(60)]


async def test_a_reader_that_is_slow_gets_everything(model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio  # noqa: PLC0415

    monkeypatch.setattr("app.providers.transport.BACKLOG_BYTES", 2000)
    pieces = [f"<{n}>" for n in range(3000)]
    model.script([text(*pieces), finish(), done()])
    said = ""
    async with provider_at(model.base_url) as provider:
        async for part in provider.stream(asking()):
            said += part.text if isinstance(part, TextDelta) else ""
            await asyncio.sleep(0.001)
    assert said == "".join(pieces)


async def test_calls_reply_of_the_kit(model: ModelServer) -> None:
    told = await told_by(model, *reply_calls(("a", "weather", {"city": "Ulm"}), ("b", "weather", {"city": "Bonn"})))
    assert [call.tool_call_id for call in told.calls] == ["a", "b"]


def test_the_provider_fits_its_contract() -> None:
    def takes(provider: ModelProvider) -> ModelProvider:
        return provider

    from app.providers.stream import LayeredProvider  # noqa: PLC0415

    assert takes(LayeredProvider("x:y", None, None))  # type: ignore[arg-type]
