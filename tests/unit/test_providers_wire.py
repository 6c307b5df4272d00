"""Cleaning a stream gives the same however its bytes were cut, styled and batched."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from app.clock import UuidIds
from app.providers.openai_wire import ChatWire
from app.providers.sse import Event, SseReader
from app.providers.think_tags import ThinkTags

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CALL_ARGS = st.dictionaries(TEXT, TEXT, max_size=3).map(lambda value: orjson.dumps(value).decode())
DELTAS = st.lists(
    st.one_of(st.tuples(st.just("content"), TEXT), st.tuples(st.just("reasoning_content"), TEXT)), max_size=12
)
CALLS = st.lists(st.tuples(TEXT.filter(bool), CALL_ARGS, st.integers(1, 4)), max_size=3)


def stream_of(deltas: list[tuple[str, str]], calls: list[tuple[str, str, int]]) -> list[bytes]:
    """The events of a stream, one a delta, then the calls in pieces."""
    shaped: list[dict[str, Any]] = [{name: text} for name, text in deltas]
    for index, (name, args, pieces) in enumerate(calls):
        size = max(1, len(args) // pieces)
        for at in range(0, len(args), size):
            head = {"id": f"c{index}", "type": "function"} if at == 0 else {}
            function = {"arguments": args[at : at + size]} | ({"name": name} if at == 0 else {})
            shaped.append({"tool_calls": [{"index": index, **head, "function": function}]})
    return [orjson.dumps({"choices": [{"index": 0, "delta": delta}]}) for delta in shaped]


def styled(events: list[bytes], style: str, end: str) -> bytes:
    """The events as bytes of an event stream."""
    lines = [b"data: " + event + b"\n\n" for event in [*events, b"[DONE]"]]
    if style == "comments":
        lines = [b": hm\n\n" + line for line in lines]
    if style == "bom":
        lines[0] = b"\xef\xbb\xbf" + lines[0]
    if style == "tight":
        lines = [line.replace(b"data: ", b"data:", 1).replace(b"\n\n", b"\n") for line in lines]
    return b"".join(lines).replace(b"\n", end.encode())


def cleaned(chunks: list[bytes]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """What comes out: text by field, and the calls."""
    reader, wire, clean = SseReader("x"), ChatWire("x", UuidIds()), b""
    for chunk in chunks:
        told: list[Event] = []
        reader.feed(chunk, told)
        for event in told:
            wire.event(event)
        clean += wire.take()
    clean += wire.close()
    texts: dict[str, str] = {}
    calls: dict[int, tuple[str, str]] = {}
    for line in clean.split(b"\n\n"):
        if not line.startswith(b"data: {"):
            continue
        for name, value in orjson.loads(line[6:])["choices"][0]["delta"].items():
            if name != "tool_calls":
                texts[name] = texts.get(name, "") + value
                continue
            (piece,) = value
            known = calls.get(piece["index"], ("", ""))
            added = piece["function"]
            calls[piece["index"]] = (known[0] + added.get("name", ""), known[1] + added["arguments"])
    return texts, [calls[number] for number in sorted(calls)]


@settings(max_examples=300, deadline=None)
@given(
    deltas=DELTAS,
    calls=CALLS,
    style=st.sampled_from(["plain", "comments", "bom", "tight"]),
    end=st.sampled_from(["\n", "\r", "\r\n"]),
    cuts=st.lists(st.integers(0, 3000), max_size=40),
)
def test_cuts_styles_and_batches_change_nothing(
    deltas: list[tuple[str, str]], calls: list[tuple[str, str, int]], style: str, end: str, cuts: list[int]
) -> None:
    whole = styled(stream_of(deltas, calls), style, end)
    borders = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    texts, told_calls = cleaned([whole[low:high] for low, high in pairwise(borders)])
    said = "".join(text for name, text in deltas if name == "content")
    if not said.lstrip().startswith("<think>"):
        assert texts.get("content", "") == said
    assert texts.get("reasoning_content", "") == "".join(text for name, text in deltas if name != "content")
    assert told_calls == [(name, args) for name, args, _ in calls]


@settings(max_examples=300, deadline=None)
@given(
    thought=st.text("<>/thinkx \n", max_size=20).filter(lambda text: "</think>" not in text),
    said=st.text("<>/thinkx \n", max_size=20),
    size=st.integers(1, 9),
)
def test_tags_are_found_however_they_are_cut(thought: str, said: str, size: int) -> None:
    whole = f"<think>{thought}</think>{said}"
    tags, got = ThinkTags(), ["", ""]
    for at in range(0, len(whole), size):
        for side, piece in enumerate(tags.feed(whole[at : at + size])):
            got[side] += piece
    for side, piece in enumerate(tags.rest()):
        got[side] += piece
    thinking, _, text = whole.removeprefix("<think>").partition("</think>")
    assert got == [thinking, text.lstrip()]
