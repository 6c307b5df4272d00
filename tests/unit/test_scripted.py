"""The scripted provider: which response is played, what its parts do, and what is wrong with a wrong script."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from app.errors import SettingsError
from app.providers.contract import ArgsDelta, TextDelta, ThinkingDelta
from app.providers.script import Script
from app.providers.scripted import ScriptedProvider
from tests.unit.test_providers_support import asking, tell, user


def playing(*responses: Any) -> ScriptedProvider:
    return ScriptedProvider("fake", Script.parse(list(responses)))


async def test_without_a_script_it_says_the_message_back_word_by_word() -> None:
    told = await tell(ScriptedProvider(), asking("  say\tthis\n\nback "))
    assert told.text == "  say\tthis\n\nback "
    assert len(told.parts) == 4
    assert told.finished.stop_reason == "stop"
    assert (await tell(ScriptedProvider(), asking(""))).text == ""


async def test_parts_are_played_in_order() -> None:
    parts = [{"thinking": "hm"}, {"text": "a"}, {"text": "b"}]
    told = await tell(playing({"parts": parts, "usage": {"inputTokens": 3}}))
    assert told.parts[:3] == [ThinkingDelta("hm"), TextDelta("a"), TextDelta("b")]
    assert told.finished.model == "fake"
    used = told.finished.usage
    assert (used.input_tokens, used.output_tokens, used.model_calls) == (3, None, 1)


async def test_a_pause_is_silence() -> None:
    told = await tell(playing({"parts": [{"text": "a"}, {"pauseMs": 60}, {"text": "b"}]}))
    assert 0.06 <= told.seconds < 1


async def test_calls_are_told_behind_the_text() -> None:
    parts = [
        {"toolCall": {"id": "c1", "name": "read", "args": {"path": "a"}}},
        {"text": "so"},
        {"toolCall": {"name": "run", "args": "{broken"}},
        {"toolCall": {"name": "now"}},
    ]
    told = await tell(playing({"parts": parts}))
    assert [(call.name, call.args) for call in told.calls] == [
        ("read", '{"path": "a"}'),
        ("run", "{broken"),
        ("now", "{}"),
    ]
    assert told.calls[0].tool_call_id == "c1"
    assert told.calls[1].tool_call_id
    assert told.parts[0] == ArgsDelta("c1", '{"path": "a"}')
    assert told.finished.stop_reason == "tool"


async def test_an_error_ends_the_response_where_it_stands() -> None:
    error = {"code": "provider-overloaded", "message": "later", "retryable": True}
    told = await tell(playing({"parts": [{"text": "half"}, {"error": error}, {"text": "never"}]}))
    assert told.text == "half"
    failure = told.failed("provider-overloaded")
    assert (str(failure), failure.retryable) == ("later", True)
    assert not (await tell(playing({"parts": [{"error": {}}]}))).failed("provider-error").retryable


async def test_the_stop_reason_can_be_given() -> None:
    told = await tell(playing({"parts": [{"text": "x"}], "stopReason": "length"}))
    assert told.finished.stop_reason == "length"


async def test_the_first_response_that_fits_and_is_left_is_played() -> None:
    provider = playing(
        {"match": "^weather", "times": 2, "parts": [{"text": "rain"}]},
        {"match": "(?i)WEATHER", "parts": [{"text": "still rain"}]},
        {"times": 1, "parts": [{"text": "once"}]},
    )
    said = [(await tell(provider, asking(text))).text for text in ("weather", "the weather", "x", "weather", "weather")]
    assert said == ["rain", "still rain", "once", "rain", "still rain"]
    assert "no response left" in str((await tell(provider, asking("x"))).failed("provider-refused"))


async def test_only_the_last_user_text_is_matched() -> None:
    provider = playing({"match": "old", "parts": [{"text": "wrong"}]}, {"parts": [{"text": "right"}]})
    assert (await tell(provider, asking("new", user("old")))).text == "right"


async def test_a_script_may_say_nothing() -> None:
    told = await tell(playing({"parts": []}))
    assert len(told.parts) == 1


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({}, "script must be a list"),
        (["x"], "script: [0] must be an object"),
        ([{}], "script: [0].parts must be a list"),
        ([{"parts": [], "unknown": 1}], "script: [0].unknown is not known; allowed are match, times"),
        ([{"parts": []}, {"parts": ["x"]}], "script: [1].parts[0] must be an object"),
        ([{"parts": [{}]}], "script: [0].parts[0] must have exactly one of"),
        ([{"parts": [{"text": "a", "thinking": "b"}]}], "script: [0].parts[0] must have exactly one of"),
        ([{"parts": [{"text": ""}]}], "script: [0].parts[0].text must be text"),
        ([{"parts": [{"pauseMs": -1}]}], "script: [0].parts[0].pauseMs must be a number"),
        ([{"parts": [{"pauseMs": True}]}], "script: [0].parts[0].pauseMs must be a number"),
        ([{"parts": [{"toolCall": {}}]}], "script: [0].parts[0].toolCall.name must be text"),
        ([{"parts": [{"toolCall": {"name": "x", "args": 1}}]}], "script: [0].parts[0].toolCall.args must be"),
        ([{"parts": [{"error": {"code": "odd"}}]}], "script: [0].parts[0].error.code must be one of provider-error"),
        ([{"parts": [{"error": {"retryable": 1}}]}], "script: [0].parts[0].error.retryable must be true or false"),
        ([{"parts": [], "match": "("}], "script: [0].match is no regular expression"),
        ([{"parts": [], "times": 0}], "script: [0].times must be a whole number"),
        ([{"parts": [], "stopReason": "odd"}], "script: [0].stopReason must be one of stop"),
        ([{"parts": [], "stopReason": []}], "script: [0].stopReason must be one of stop"),
        ([{"parts": [], "usage": {"inputTokens": -1}}], "script: [0].usage.inputTokens must be"),
        ([{"parts": [], "usage": {"tokens": 1}}], "script: [0].usage.tokens is not known"),
    ],
)
def test_a_wrong_script_names_the_place(document: Any, place: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Script.parse(document)
    assert str(caught.value).startswith(place)
    assert "\n" not in str(caught.value)


def test_a_script_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    with pytest.raises(SettingsError, match=r"missing\.json: the script cannot be read"):
        Script.load(missing)
    missing.write_text("{")
    with pytest.raises(SettingsError, match=r"missing\.json: the script is not JSON"):
        Script.load(missing)


async def test_a_pause_can_be_cancelled() -> None:
    provider = playing({"parts": [{"text": "a"}, {"pauseMs": 60_000}]})
    stream = provider.stream(asking())
    await anext(stream)
    begun = time.monotonic()
    await stream.aclose()
    assert time.monotonic() - begun < 0.1
