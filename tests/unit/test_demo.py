"""The built-in demo model: what it says to what, at which pace, and the tools it calls."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from app.domain.message import Message, TextPart, ToolCallPart, ToolResultPart
from app.providers.contract import Finished, ModelRequest, TextDelta, ThinkingDelta, ToolSpec
from app.providers.demo import COUNT_MAX, INTRODUCTION, PACE_S, RESULT_CHARS, DemoProvider
from tests.unit.test_providers_support import Told, asking, assistant, tell, user

KNOWN = (user("hi"), assistant(TextPart("hello")))
"""A conversation in which it has introduced itself."""


def schema(*names: str) -> dict[str, object]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}


READ = ToolSpec("read", "Reads a file.", schema("path", "offset"))
EXEC = ToolSpec("exec", "Runs a command.", schema("timeout_s", "command"))
LIST = ToolSpec("list", "Lists a folder.", schema("directory"))


async def said_to(text: str, *tools: ToolSpec, before: tuple[Message, ...] = KNOWN) -> Told:
    return await tell(DemoProvider(pace_s=(0, 0)), asking(text, *before, tools=tools))


async def test_it_says_what_it_is_in_its_first_reply_only() -> None:
    first = await said_to("hello", before=())
    assert first.text.startswith(INTRODUCTION)
    for words in ("demo model", "agents.defaults.model", "OPENAI_API_KEY"):
        assert words in INTRODUCTION
    assert INTRODUCTION not in (await said_to("hello")).text


@pytest.mark.parametrize("hello", ["hello", "Hi!", "hey there", "Good morning"])
async def test_it_greets(hello: str) -> None:
    assert (await said_to(hello)).text.startswith("Hello!")


@pytest.mark.parametrize("question", ["help", "What can you do?", "who are you"])
async def test_it_tells_what_it_can_do(question: str) -> None:
    told = await said_to(question)
    assert all(words in told.text for words in ("count to", "repeat", "read README.md", "run ls"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("count to 5", "1, 2, 3, 4, 5."),
        ("Count up to 1!", "1."),
        ("count to 0", "Done before I began."),
        (f"count to {COUNT_MAX + 1}", f"I count to {COUNT_MAX} at most."),
        ("repeat  Twice  or more", "Twice  or more"),
        ("say: hello\n  world", "hello\n  world"),
    ],
)
async def test_it_counts_and_repeats(text: str, said: str) -> None:
    assert (await said_to(text)).text == said


async def test_it_says_back_what_it_does_not_know() -> None:
    told = await said_to("why is the sky\nblue?")
    assert "why is the sky\nblue?" in told.text


@pytest.mark.parametrize("text", ["", "   ", "?!", "日本語", "x" * 10_000])
async def test_it_has_an_answer_to_anything(text: str) -> None:
    assert (await said_to(text)).text.strip()


async def test_it_thinks_first_and_speaks_in_words() -> None:
    told = await said_to("hello")
    kinds = [type(part) for part in told.parts]
    assert kinds == sorted(kinds, key=[ThinkingDelta, TextDelta, Finished].index)
    assert told.thinking
    assert len([part for part in told.parts if isinstance(part, TextDelta)]) == len(told.text.split())


async def test_it_counts_words_as_tokens() -> None:
    used = (await said_to("one two three")).finished.usage
    assert used.input_tokens == 5  # `hi`, `hello` and these three
    assert used.output_tokens
    assert (used.cost_usd, used.model_calls) == (None, 1)


# pace


async def test_its_pace_is_a_humans() -> None:
    assert 0.02 <= PACE_S[0] < PACE_S[1] <= 0.05
    begun = time.monotonic()
    told = await tell(DemoProvider(pace_s=(0.01, 0.012)), asking("count to 10", *KNOWN))
    assert len(told.parts) * 0.01 <= time.monotonic() - begun < len(told.parts) * 0.03 + 2


async def test_the_pace_is_drawn_from_the_chance_that_was_given() -> None:
    class Drawn:
        asked: list[tuple[float, float]] = []  # noqa: RUF012

        def between(self, low: float, high: float) -> float:
            self.asked.append((low, high))
            return 0.0

    await tell(DemoProvider(pace_s=(3, 4), chance=Drawn()), asking("hello"))
    assert set(Drawn.asked) == {(3, 4)}


async def test_it_can_be_cancelled_and_leaves_nothing() -> None:
    provider = DemoProvider()
    task = asyncio.create_task(tell(provider, asking("count to 1000", *KNOWN)))
    await asyncio.sleep(0.1)
    begun = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - begun < 0.1
    assert len(asyncio.all_tasks()) == 1
    stream = provider.stream(asking("count to 1000"))
    await anext(stream)
    await stream.aclose()
    await provider.close()


# tools


@pytest.mark.parametrize(
    ("text", "name", "args"),
    [
        ("read README.md", "read", {"path": "README.md"}),
        ("Read `notes/ä.txt`", "read", {"path": "notes/ä.txt"}),
        ("list", "list", {"directory": "."}),
        ("list docs", "list", {"directory": "docs"}),
        ("run ls -la | head", "exec", {"command": "ls -la | head"}),
    ],
)
async def test_it_calls_the_tool_it_is_asked_for(text: str, name: str, args: dict[str, str]) -> None:
    told = await said_to(text, EXEC, LIST, READ)
    (call,) = told.calls
    assert (call.name, json.loads(call.args)) == (name, args)
    assert told.args_of(call.tool_call_id) == call.args
    assert told.finished.stop_reason == "tool"


async def test_calls_have_ids_of_their_own() -> None:
    ids = {(await said_to("list", LIST)).calls[0].tool_call_id for _ in range(20)}
    assert len(ids) == 20


@pytest.mark.parametrize("text", ["read README.md", "list", "run ls"])
async def test_without_tools_it_says_so(text: str) -> None:
    for tools in ((), (ToolSpec("other", "", {}),)):
        told = await said_to(text, *tools)
        assert not told.calls
        assert "no tool" in told.text
        assert told.finished.stop_reason == "stop"


async def test_it_shows_what_the_tools_returned() -> None:
    results = (
        ToolResultPart("c1", "read", "x" * (RESULT_CHARS + 1)),
        ToolResultPart("c2", "exec", "not allowed", is_error=True),
    )
    calls = assistant(ToolCallPart("c1", "read", "{}"), ToolCallPart("c2", "exec", "{}"))
    request = ModelRequest("", (user("read a"), calls, Message("tool", "t", results)), (READ,))
    told = await tell(DemoProvider(pace_s=(0, 0)), request)
    assert "`read` returned" in told.text
    assert "`exec` failed" in told.text
    assert "not allowed" in told.text
    assert RESULT_CHARS <= told.text.count("x") < RESULT_CHARS + 10
    assert not told.calls
