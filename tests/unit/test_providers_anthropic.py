"""Models behind the messages API of Anthropic: parts, signed thinking, calls, ends, errors and what is sent."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson
import pytest

from app.domain.message import Message, TextPart, ThinkingPart, ToolCallPart, ToolResultPart
from app.providers.contract import ArgsDelta, TextDelta, ThinkingDelta, ThinkingDetail
from tests.unit.test_providers_support import (
    KEY,
    TOOL,
    ByteServer,
    Told,
    asking,
    assistant,
    provider_at,
    sse_head,
    tell,
    user,
)

START = {
    "type": "message_start",
    "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "claude-x", "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 3, "output_tokens": 1,
        },
    },
}  # fmt: skip
STOP = {"type": "message_stop"}


def event(value: dict[str, Any]) -> bytes:
    return b"event: " + str(value["type"]).encode() + b"\ndata: " + orjson.dumps(value) + b"\n\n"


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> bytes:
    begun = event({"type": "content_block_start", "index": index, "content_block": start})
    middle = b"".join(event({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas)
    return begun + middle + event({"type": "content_block_stop", "index": index})


def said(*deltas: str, index: int = 0) -> bytes:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": text} for text in deltas))


def ending(reason: str = "end_turn") -> bytes:
    delta = {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": {"output_tokens": 9},
    }
    return event(delta) + event(STOP)


THOUGHT = block(
    0,
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "thinking_delta", "thinking": "let "},
    {"type": "thinking_delta", "thinking": "me"},
    {"type": "signature_delta", "signature": "c2lnbmVk"},
)
CALL = block(
    1,
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
    {"type": "input_json_delta", "partial_json": '{"city":'},
    {"type": "input_json_delta", "partial_json": ' "Ulm"}'},
)


async def told_by(*pieces: bytes, stays_open_s: float = 0, **fields: Any) -> tuple[Told, ByteServer]:
    server = ByteServer([sse_head(), *pieces], stays_open_s)
    async with server.running(), provider_at(server.url, "local:claude-sonnet-5-5", kind="anthropic") as provider:
        return await tell(provider, asking(**fields)), server


def body_of(server: ByteServer) -> dict[str, Any]:
    parsed: dict[str, Any] = orjson.loads(server.requests[-1].partition(b"\r\n\r\n")[2])
    return parsed


async def test_text_and_usage() -> None:
    told, _ = await told_by(event(START), event({"type": "ping"}), said("one ", "two"), ending())
    assert told.text == "one two"
    assert told.finished.stop_reason == "stop"
    assert told.finished.model == "claude-x"
    used = told.finished.usage
    assert (used.input_tokens, used.output_tokens) == (17, 9)
    assert (used.cache_read_tokens, used.cache_write_tokens, used.model_calls) == (4, 3, 1)


async def test_what_arrived_together_is_joined() -> None:
    told, _ = await told_by(event(START) + said(*(f" {n}" for n in range(200))) + ending())
    assert told.text == "".join(f" {n}" for n in range(200))
    assert len(told.parts) < 10


async def test_thinking_is_signed_before_the_text_begins() -> None:
    told, _ = await told_by(event(START), THOUGHT, said("yes", index=1), ending())
    detail = ThinkingDetail({"provider": "local", "signature": "c2lnbmVk"})
    kinds = [part for part in told.parts if not isinstance(part, ThinkingDelta)]
    assert told.thinking == "let me"
    assert kinds[:2] == [detail, TextDelta("yes")]


async def test_hidden_thinking_is_kept_to_be_sent_back() -> None:
    hidden = block(0, {"type": "redacted_thinking", "data": "aGlkZGVu"})
    told, _ = await told_by(event(START), hidden, said("yes", index=1), ending())
    assert told.thinking == ""
    assert told.parts[0] == ThinkingDetail({"provider": "local", "signature": "aGlkZGVu", "id": "redacted_thinking"})


async def test_a_call() -> None:
    told, _ = await told_by(event(START), said("so"), CALL, ending("tool_use"), tools=(TOOL,))
    assert [(call.tool_call_id, call.name, call.args) for call in told.calls] == [
        ("toolu_1", "weather", '{"city": "Ulm"}')
    ]
    assert told.args_of("toolu_1") == '{"city": "Ulm"}'
    assert any(isinstance(part, ArgsDelta) for part in told.parts)
    assert told.finished.stop_reason == "tool"


async def test_a_call_without_arguments() -> None:
    empty = block(0, {"type": "tool_use", "id": "t", "name": "now", "input": {}})
    told, _ = await told_by(event(START), empty, ending("tool_use"))
    assert told.calls[0].args == "{}"


@pytest.mark.parametrize(
    ("reason", "stop"), [("max_tokens", "length"), ("stop_sequence", "stop"), ("refusal", "content-filter")]
)
async def test_stop_reasons(reason: str, stop: str) -> None:
    told, _ = await told_by(event(START), said("x"), ending(reason))
    assert told.finished.stop_reason == stop


async def test_odd_bytes() -> None:
    whole = event(START) + said("a\u2028b\u0085", "日本") + ending()
    for styled in (
        b"\xef\xbb\xbf" + whole,
        whole.replace(b"\n", b"\r\n"),
        whole.replace(b": ", b":"),
        whole.replace(b"\n", b"\r"),
    ):
        told, _ = await told_by(*(styled[at : at + 7] for at in range(0, len(styled), 7)))
        assert told.text == "a\u2028b\u0085日本"


async def test_an_end_without_a_stop_is_an_error() -> None:
    told, _ = await told_by(event(START), said("half"))
    assert told.text == "half"
    assert told.failed("provider-bad-response").retryable


async def test_the_stop_reason_completes() -> None:
    told, _ = await told_by(event(START), said("all"), ending().partition(b"event: message_stop")[0])
    assert told.finished.stop_reason == "stop"


async def test_nothing_behind_the_last_event_is_waited_for() -> None:
    told, server = await told_by(event(START), said("all"), ending(), stays_open_s=10)
    assert told.finished.stop_reason == "stop"
    assert told.seconds < 1
    await asyncio.sleep(0.1)
    assert server.gone_at is not None


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("overloaded_error", "provider-overloaded"),
        ("rate_limit_error", "provider-rate-limited"),
        ("api_error", "provider-error"),
    ],
)
async def test_an_error_in_the_stream(kind: str, code: str) -> None:
    error = event({"type": "error", "error": {"type": kind, "message": f"words about {KEY}"}})
    told, _ = await told_by(event(START), said("half"), error)
    assert told.text == "half"
    assert told.failed(code).retryable


@pytest.mark.parametrize(
    ("status", "kind", "message", "code"),
    [
        (401, "authentication_error", "invalid x-api-key", "provider-auth"),
        (529, "overloaded_error", "Overloaded", "provider-overloaded"),
        (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", "context-overflow"),
        (400, "invalid_request_error", "max_tokens: too large", "provider-refused"),
        (429, "rate_limit_error", "slow", "provider-rate-limited"),
    ],
)
async def test_refusals(status: int, kind: str, message: str, code: str) -> None:
    body = orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})
    fields = f"content-type: application/json\r\nretry-after: 3\r\ncontent-length: {len(body)}"
    server = ByteServer([f"HTTP/1.1 {status} No\r\n{fields}\r\n\r\n".encode() + body])
    async with server.running(), provider_at(server.url, kind="anthropic") as provider:
        failure = (await tell(provider)).failed(code)
    assert (failure.status, failure.retry_after_s) == (status, 3.0)
    assert message not in str(failure)
    assert len(server.requests) == 1


async def test_a_refused_connection() -> None:
    async with ByteServer([]).running() as server:
        url = server.url
    async with provider_at(url, kind="anthropic") as provider:
        assert "refused" in str((await tell(provider)).failed("provider-unreachable"))


async def test_a_body_that_is_no_event_stream() -> None:
    server = ByteServer([b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<html>"])
    async with server.running(), provider_at(server.url, kind="anthropic") as provider:
        assert not (await tell(provider)).failed("provider-bad-response").retryable


async def test_cancelling_closes_the_connection() -> None:
    server = ByteServer([sse_head(), event(START)], stays_open_s=10)
    async with server.running(), provider_at(server.url, kind="anthropic") as provider:
        task = asyncio.create_task(tell(provider))
        await asyncio.sleep(0.2)
        left_at = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.1)
        assert server.gone_at is not None
        assert server.gone_at - left_at < 0.1


async def test_what_is_sent() -> None:
    before = (
        user("hello"),
        assistant(
            ThinkingPart("let me", {"provider": "local", "signature": "c2lnbmVk"}),
            ThinkingPart("", {"provider": "local", "signature": "aGlkZGVu", "id": "redacted_thinking"}),
            TextPart("so "),
            TextPart("then"),
            ToolCallPart("toolu_1", "weather", '{"city": "Ulm"}'),
            ToolCallPart("toolu_2", "weather", "{broken"),
        ),
        Message(
            "tool",
            "t",
            (ToolResultPart("toolu_1", "weather", "rain"), ToolResultPart("toolu_2", "weather", "no", True)),
        ),
        assistant(ThinkingPart("of another", {"provider": "other", "signature": "x"}), ThinkingPart("unsigned")),
    )
    server = ByteServer([sse_head(), event(START), said("x"), ending()])
    async with server.running(), provider_at(server.url, "local:claude-sonnet-5-5", kind="anthropic") as provider:
        await tell(provider, asking("next", *before, system="be brief", tools=(TOOL,)))
    body = body_of(server)
    assert body["model"] == "claude-sonnet-5-5"
    assert body["stream"] is True
    assert "be brief" in str(body["system"])
    assert body["tools"][0]["name"] == "weather"
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user", "user"]
    assert body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "let me", "signature": "c2lnbmVk"},
        {"type": "redacted_thinking", "data": "aGlkZGVu"},
        {"type": "text", "text": "so then"},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Ulm"}},
        {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {}},
    ]
    results = body["messages"][2]["content"]
    assert [(one["tool_use_id"], one["is_error"]) for one in results] == [("toolu_1", False), ("toolu_2", True)]
    assert "of another" not in str(body)
    assert "unsigned" not in str(body)
    assert KEY.encode() in server.requests[-1].partition(b"\r\n\r\n")[0]


async def test_thinking_off_and_on() -> None:
    for level, on in (("off", False), ("high", True)):
        _, server = await told_by(event(START), said("x"), ending(), thinking=level)
        thinking = body_of(server).get("thinking") or {}
        assert (thinking.get("type") in ("enabled", "adaptive")) is on
