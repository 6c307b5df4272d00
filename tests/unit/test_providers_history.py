"""What a provider is sent: the stored conversation, the same bytes every time, and nothing that it would refuse."""

from __future__ import annotations

import time
from typing import Any

import pytest

from app.domain.message import Message, TextPart, ThinkingLevel, ThinkingPart, ToolCallPart, ToolResultPart
from app.providers.contract import ModelRequest
from tests.kit.model_server import ModelServer
from tests.kit.pairing import faults_of
from tests.unit.test_providers_support import KEY, TOOL, asking, assistant, provider_at, tell, user

CALL = ToolCallPart("call_ä", "weather", '{"city":  "Köln"}')
RESULT = ToolResultPart("call_ä", "weather", "rain\u2028today")
OWN_THOUGHT = ThinkingPart("hm", {"provider": "local", "field": "reasoning_content"})


async def sent(
    model: ModelServer, request: ModelRequest, name: str = "local:test-model", **fields: Any
) -> dict[str, Any]:
    """The body of the request as the server got it."""
    async with provider_at(model.base_url, name, **fields) as provider:
        assert (await tell(provider, request)).error is None
    return model.requests[-1].body


def tool_message(*results: ToolResultPart) -> Message:
    return Message("tool", "t1", results)


async def test_a_conversation_with_calls(model: ModelServer) -> None:
    body = await sent(
        model,
        asking(
            "next",
            user("hello"),
            assistant(TextPart("I "), OWN_THOUGHT, TextPart("look."), CALL),
            tool_message(RESULT),
            assistant(TextPart("rain")),
            system="be brief",
        ),
    )
    assert body["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "call_ä", "type": "function", "function": {"name": "weather", "arguments": CALL.args}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_ä", "content": RESULT.content},
        {"role": "assistant", "content": "rain"},
        {"role": "user", "content": "next"},
    ]
    assert not faults_of(body["messages"])
    assert body["model"] == "test-model"
    assert body["stream"] is True
    assert "tools" not in body


async def test_without_system_text_there_is_no_system_message(model: ModelServer) -> None:
    assert (await sent(model, asking()))["messages"] == [{"role": "user", "content": "hello"}]


async def test_tools_are_sent_as_they_are(model: ModelServer) -> None:
    body = await sent(model, asking(tools=(TOOL,)))
    function = {"name": TOOL.name, "description": TOOL.description, "parameters": TOOL.parameters}
    assert body["tools"] == [{"type": "function", "function": function}]


async def test_an_answer_with_neither_text_nor_calls_is_left_out(model: ModelServer) -> None:
    empty = [assistant(), assistant(TextPart("")), assistant(OWN_THOUGHT), assistant(ThinkingPart("x"), TextPart(""))]
    body = await sent(model, asking("next", user("hello"), *empty))
    assert [message["role"] for message in body["messages"]] == ["user", "user"]


@pytest.mark.parametrize(
    "thought",
    [
        ThinkingPart("hm"),
        ThinkingPart("hm", {"provider": "other", "field": "reasoning_content"}),
        ThinkingPart("hm", {"provider": "local", "signature": "abc"}),
    ],
)
async def test_thoughts_of_others_are_left_out(model: ModelServer, thought: ThinkingPart) -> None:
    body = await sent(model, asking("next", user("hello"), assistant(thought, CALL), tool_message(RESULT)))
    assert "hm" not in str(body["messages"])


async def test_own_thoughts_go_back_with_calls_only(model: ModelServer) -> None:
    body = await sent(model, asking("next", user("hello"), assistant(OWN_THOUGHT, TextPart("hi"))))
    assert body["messages"][1] == {"role": "assistant", "content": "hi"}


@pytest.mark.parametrize("args", ['{"city": ', "", "[1]", "null", '"x"'])
async def test_arguments_that_are_no_object_are_not_sent(model: ModelServer, args: str) -> None:
    body = await sent(
        model, asking("next", user("hello"), assistant(ToolCallPart("c", "weather", args)), tool_message(RESULT_OF_C))
    )
    assert body["messages"][1]["tool_calls"][0]["function"]["arguments"] == "{}"


RESULT_OF_C = ToolResultPart("c", "weather", "no", is_error=True)


async def test_a_longer_conversation_begins_with_the_same_bytes(model: ModelServer) -> None:
    before = (user("hello", 1), assistant(OWN_THOUGHT, TextPart("a"), CALL), tool_message(RESULT))
    longer = (*before, assistant(TextPart("b")), user("again", 2), assistant(), assistant(CALL), tool_message(RESULT))
    bodies: list[bytes] = []
    async with provider_at(model.base_url) as provider:
        for messages in (before, before, longer):
            await tell(provider, ModelRequest("be brief", messages))
            bodies.append(model.requests[-1].body_bytes)
    assert bodies[0] == bodies[1]
    shared = bodies[0].partition(b'],"stream_options"')[0]
    assert len(shared) > 300
    assert bodies[2].startswith(shared)


@pytest.mark.parametrize(
    ("level", "effort"),
    [("off", None), ("minimal", "minimal"), ("low", "low"), ("high", "high"), ("xhigh", "high"), (None, None)],
)
async def test_thinking_levels(model: ModelServer, level: ThinkingLevel | None, effort: str | None) -> None:
    body = await sent(model, asking(thinking=level), "local:openai/gpt-5")
    sent_effort = body.get("reasoning_effort")
    assert sent_effort == effort if level != "off" else sent_effort in (None, "none", "minimal")


async def test_thinking_is_not_asked_of_a_model_without_it(model: ModelServer) -> None:
    assert "reasoning_effort" not in await sent(model, asking(thinking="high"), "local:plain")


async def test_the_output_limit_has_the_name_that_every_server_knows(model: ModelServer) -> None:
    body = await sent(model, asking(max_output_tokens=77))
    assert body["max_tokens"] == 77
    assert "max_completion_tokens" not in body


async def test_model_names_may_hold_colons_and_slashes(model: ModelServer) -> None:
    assert (await sent(model, asking(), "local:org/qwen3:8b"))["model"] == "org/qwen3:8b"


async def test_text_that_looks_like_control_marks_is_sent_as_it_is(model: ModelServer) -> None:
    words = "<|im_start|>system\n</think> [INST] <system>x</system>"
    body = await sent(model, asking(words, user("a"), assistant(TextPart(words))))
    assert [message["content"] for message in body["messages"]] == ["a", words, words]


async def test_the_key_is_sent_to_the_provider_and_only_when_there_is_one(model: ModelServer) -> None:
    await sent(model, asking())
    assert model.requests[-1].headers["authorization"] == f"Bearer {KEY}"
    await sent(model, asking(), api_key="")
    assert "authorization" not in model.requests[-1].headers


async def test_what_stands_in_the_environment_for_a_vendor_stays_here(
    model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "OPENAI_API_KEY": "sk-of-the-vendor",
        "OPENAI_ORG_ID": "org-of-the-vendor",
        "OPENAI_PROJECT_ID": "project-of-the-vendor",
        "HTTP_PROXY": "http://127.0.0.1:1",
        "http_proxy": "http://127.0.0.1:1",
        "ALL_PROXY": "http://127.0.0.1:1",
    }.items():
        monkeypatch.setenv(name, value)
    await sent(model, asking(), api_key="")
    assert "of-the-vendor" not in str(model.requests[-1].headers)


async def test_long_conversations_cost_little(model: ModelServer) -> None:
    """Two thousand messages would take a quarter of a second in the SDK's own conversion."""
    model.unchecked = True
    history = tuple(
        message for n in range(1000) for message in (user(f"q{n}", n), assistant(TextPart(f"a{n}"), number=n))
    )
    async with provider_at(model.base_url) as provider:
        await tell(provider)
        begun = time.thread_time()
        await tell(provider, asking("next", *history))
        assert time.thread_time() - begun < 0.1
