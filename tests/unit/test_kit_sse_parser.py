"""The strict SSE parser: every line end, every border, every oddity."""

from __future__ import annotations

import pytest

from tests.kit.sse import Event, Parser

BLOCK = 'retry: 1500\nid: 7\nevent: assistant\ndata: {"a":\ndata: "日本\u2028\u0085😀"}\n\n'


def parsed(data: bytes) -> tuple[list[Event], list[str]]:
    parser = Parser()
    events = parser.feed(data)
    return events, parser.violations


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_every_line_end_at_every_border(line_end: str, size: int) -> None:
    whole = (BLOCK + "id: 8\ndata: 2\n\n").replace("\n", line_end).encode()
    parser = Parser()
    events = [event for at in range(0, len(whole), size) for event in parser.feed(whole[at : at + size])]
    assert parser.violations == [] and not parser.inside_block
    first, second = events
    assert (first.id, first.event, first.retry, first.data) == ("7", "assistant", 1500, {"a": "日本\u2028\u0085😀"})
    assert (second.id, second.event, second.retry, second.data) == ("8", "message", None, 2)


def test_mixed_line_ends_and_a_block_that_was_cut() -> None:
    parser = Parser()
    assert len(parser.feed(b"data: 1\r\n\r\ndata: 2\n\rdata: 3\r\r\n")) == 3
    assert parser.feed(b"data: 4\n") == []
    assert parser.inside_block
    assert [event.data for event in parser.feed(b"\n")] == [4]


def test_only_one_space_is_dropped_and_values_may_hold_colons() -> None:
    (event,), violations = parsed(b'event:  two\ndata:"x:y"\nid:a:b\n\n')
    assert (event.event, event.data, event.id, violations) == (" two", "x:y", "a:b", [])
    (event,), _ = parsed(b"id: \x0b\x0c\x1c\xc2\x85\ndata: 1\n\n")
    assert event.id == "\x0b\x0c\x1c\x85"


def test_the_id_in_force_outlives_its_block() -> None:
    events, _ = parsed(b"id: 5\ndata: 1\n\ndata: 2\n\nid:\ndata: 3\n\n")
    assert [(event.id, event.last_id) for event in events] == [("5", "5"), (None, "5"), ("", "")]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b": ping\n\n", "comment"),
        (b"data: 1\n: inside\n\n", "comment"),
        (b"id: 4\n\n", "without data"),
        (b"event: x\n\n", "without data"),
        (b"\xef\xbb\xbfdata: 1\n\n", "byte order mark"),
        (b"data: \xff\n\n", "not UTF-8"),
        (b"data: {\n\n", "not JSON"),
        (b"dat: 1\n\n", "unknown field"),
        (b"data\ndata: 1\n\n", "without a colon"),
        (b"retry: 1s\ndata: 1\n\n", "retry"),
        (b"id: a\0b\ndata: 1\n\n", "NUL"),
    ],
)
def test_oddities_are_noted(data: bytes, fault: str) -> None:
    _, violations = parsed(data)
    assert any(fault in violation for violation in violations), violations


def test_a_lone_comment_leaves_no_empty_block() -> None:
    events, violations = parsed(b": a\n\n\n\ndata: 1\n\n")
    assert len(events) == 1 and len(violations) == 1


def test_envelope_fields() -> None:
    (event,), _ = parsed(
        b'id: 9\nevent: message\ndata: {"runId":"r","seq":9,"firstSeq":4,"stream":"lifecycle","ts":"t",'
        b'"data":{"phase":"end"}}\n\n'
    )
    assert (event.run_id, event.seq, event.first_seq, event.stream, event.phase) == ("r", 9, 4, "lifecycle", "end")
    assert event.terminal
