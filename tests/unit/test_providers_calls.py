"""Tool calls as compatible servers number and name them: right calls with right arguments, or one clear error."""

from __future__ import annotations

import pytest

from app.providers.contract import ArgsDelta
from tests.kit.model_server import ModelServer
from tests.kit.steps import (
    Step,
    Writes,
    call_piece,
    delta,
    done,
    finish,
    raw,
    reply_calls,
    text,
    tool_call,
)
from tests.unit.test_providers_support import Told, told_by


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
            return [
                call_piece(None, call_id="a", name="weather", args=A[:7]),
                call_piece(None, call_id="b", name="weather", args=B[:7]),
                call_piece(None, call_id="a", args=A[7:]),
                call_piece(None, call_id="b", args=B[7:]),
            ]
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


async def test_calls_reply_of_the_kit(model: ModelServer) -> None:
    told = await told_by(model, *reply_calls(("a", "weather", {"city": "Ulm"}), ("b", "weather", {"city": "Bonn"})))
    assert [call.tool_call_id for call in told.calls] == ["a", "b"]
