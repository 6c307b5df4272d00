"""Streams of compatible servers, as odd as they come, through the whole stack down to a real socket."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import orjson
import pytest

from app.providers.contract import ModelProvider, TextDelta, ThinkingDelta, ThinkingDetail
from app.providers.stream import LayeredProvider
from tests.kit.model_connection import Connection
from tests.kit.model_server import ModelServer
from tests.kit.steps import (
    CHUNK_BASE,
    Step,
    Writes,
    chunk_frame,
    comment,
    data,
    delta,
    done,
    finish,
    headers,
    pause,
    raw,
    recut,
    reply_text,
    role,
    text,
    thinking,
    tool_call,
    usage,
)
from tests.unit.test_providers_support import ByteServer, asking, provider_at, tell, told_by

SEPARATORS = "a\u2028b\u2029c\u0085d\x0be\x0cf"
MANY_LANGUAGES = "日本語 русский 👩‍👩‍👧 ok"


# text, thinking, usage


async def test_text_comes_as_it_was_sent(model: ModelServer) -> None:
    told = await told_by(model, *reply_text("one two three", deltas=5, delay_s=0.005))
    assert told.text == "one two three"
    # As many as there were, or fewer where some had arrived together.
    assert 1 <= len([part for part in told.parts if isinstance(part, TextDelta)]) <= 5
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


STYLES = (
    "no space", "crlf", "cr", "bom", "comments", "other fields", "no blank lines", "split over data lines",
    "crlf and split over data lines", "no end of the last line", "one byte at a time",
)  # fmt: skip


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
        case "crlf and split over data lines":
            split = whole.replace(b',"choices"', b',\ndata: "choices"').replace(b"\n", b"\r\n")
            return [recut(Writes([split]), size=1)]
        case "no end of the last line":
            return [raw(whole.rstrip())]
        case "one byte at a time":
            return [recut(Writes([whole]), size=1)]
    raise AssertionError(style)


@pytest.mark.parametrize("style", STYLES)
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


# connections


async def test_a_connection_is_used_again(model: ModelServer) -> None:
    model.default(lambda _: reply_text("again"))
    async with provider_at(model.base_url) as provider:
        for _ in range(5):
            assert (await tell(provider)).text == "again"
            assert model.connections == 1


async def test_a_body_that_ends_a_little_behind_the_end_mark_keeps_its_connection(model: ModelServer) -> None:
    made: list[object] = []
    joined = model.joined

    def counted(connection: Connection) -> None:
        made.append(connection)
        joined(connection)

    model.joined = counted  # type: ignore[method-assign]
    model.default(lambda _: [text("x"), finish(), done(), pause(0.02)])
    async with provider_at(model.base_url) as provider:
        for _ in range(3):
            assert (await tell(provider)).text == "x"
    assert len(made) == 1


async def test_many_calls_at_once(model: ModelServer) -> None:
    model.default(lambda request: reply_text(request.last_user_text, deltas=20, delay_s=0.002))
    async with provider_at(model.base_url) as provider:
        told = await asyncio.gather(*(tell(provider, asking(f"message {n} of many")) for n in range(60)))
    assert [one.text for one in told] == [f"message {n} of many" for n in range(60)]


async def test_a_reader_that_is_slow_gets_everything(model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.providers.transport.BACKLOG_BYTES", 2000)
    pieces = [f"<{n}>" for n in range(3000)]
    model.script([text(*pieces), finish(), done()])
    said = ""
    async with provider_at(model.base_url) as provider:
        async for part in provider.stream(asking()):
            said += part.text if isinstance(part, TextDelta) else ""
            await asyncio.sleep(0.001)
    assert said == "".join(pieces)


def test_the_provider_fits_its_contract() -> None:
    def takes(provider: ModelProvider) -> ModelProvider:
        return provider

    assert takes(LayeredProvider("x:y", None, None))  # type: ignore[arg-type]
