"""The stream checks find what they are for, and let pass what the contract allows."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.kit.sse import Event, by_run, check_stream, joined_text
from tests.kit.sse_parser import Parser

Spec = tuple[int, str, dict[str, Any]] | tuple[int, str, dict[str, Any], dict[str, Any]]


def told(*specs: Spec) -> list[Event]:
    """`(id, stream, data, envelope extras)` as events."""
    wire = b""
    for spec in specs:
        number, stream, data = spec[:3]
        control = stream in ("ready", "done", "heartbeat", "gap", "snapshot")
        envelope = {"runId": "r", **({} if control else {"seq": number}), **(spec[3] if len(spec) > 3 else {})}
        envelope |= {"stream": stream, "ts": "t", "data": data}
        wire += b"id: %d\nevent: %b\ndata: %b\n\n" % (number, stream.encode(), orjson.dumps(envelope))
    return Parser().feed(wire)


def delta(number: int, words: str, offset: int, message: str = "m", **extras: Any) -> Spec:
    return (number, "assistant", {"messageId": message, "delta": words, "offset": offset}, extras)


def message(number: int, phase: str, name: str = "m", **fields: Any) -> Spec:
    return (number, "assistant", {"messageId": name, "phase": phase, **fields})


def life(number: int, phase: str, **fields: Any) -> Spec:
    return (number, "lifecycle", {"phase": phase, **fields})


READY: Spec = (0, "ready", {"cursor": "0"})
GOOD: list[Spec] = [
    READY,
    life(1, "queued"),
    life(2, "start"),
    delta(3, "日😀", 0),
    (3, "heartbeat", {}),
    delta(4, "b", 2),
    message(5, "end", text="日😀b", length=3, stopReason="stop"),
    life(6, "end", outcome="completed", final=True),
    (7, "done", {"status": "ok"}),
]


def without(*numbers: int) -> list[Spec]:
    return [spec for at, spec in enumerate(GOOD) if at not in numbers]


def test_a_good_stream() -> None:
    checked = check_stream(told(*GOOD))
    assert checked.outcome == "completed" and checked.texts == ["日😀b"]
    assert checked.messages["m"].stop_reason == "stop" and checked.done is not None
    assert checked.phases[0] == "lifecycle:queued"


def test_a_resumed_one_and_one_cut_short() -> None:
    later: Spec = (3, "ready", {"cursor": "3"})
    assert check_stream(told(later, *GOOD[5:]), after=3).texts == ["日😀b"]
    check_stream(told(*GOOD[:6]), ended=False)
    assert check_stream(told((6, "ready", {}), GOOD[-1]), after=6).texts == []
    assert check_stream(told((4, "ready", {}), *GOOD[6:]), after=4).texts == ["日😀b"]
    check_stream(told(*GOOD[:4], later, *GOOD[5:]))
    check_stream(told(*GOOD[:-1], (6, "ready", {}), GOOD[-1]))


def call(seq: int, phase: str, **fields: Any) -> Spec:
    """An event of the call `t`."""
    return seq, "tool", {"phase": phase, "toolCallId": "t", **fields}


@pytest.mark.parametrize(
    ("specs", "fault"),
    [
        (without(2), "gap"),
        ([*GOOD[:4], GOOD[3], *GOOD[4:]], "double"),
        (without(7, 8), "no terminal"),
        (without(8), "no done"),
        ([*GOOD[:8], life(7, "end"), (8, "done", {})], "after the terminal"),
        ([*GOOD[:8], (9, "done", {})], "done has id"),
        ([*GOOD[:4], (4, "heartbeat", {}), *GOOD[5:]], "cursor 4"),
        ([*GOOD[:5], delta(4, "b", 1), *GOOD[6:]], "offset 1"),
        ([*GOOD[:5], delta(4, "c", 2), *GOOD[6:]], "its end says"),
        ([*GOOD[:5], delta(4, "", 2), *GOOD[6:]], "empty delta"),
        ([*GOOD[:6], message(5, "end", length=4), *GOOD[7:]], "length 4"),
        ([READY, delta(1, "b", 4)], "begins at offset"),
        ([READY, life(1, "start"), life(2, "end", runId="x"), (3, "done", {})], ""),
        ([READY, call(1, "requested"), life(2, "end"), (3, "done", {})], "without an end"),
        ([READY, call(1, "requested"), call(2, "start"), life(3, "end"), (4, "done", {})], "without an end"),
        ([READY, call(1, "start")], "unrequested"),
        ([READY, call(1, "requested"), call(2, "requested")], "requested twice"),
        ([READY, call(1, "requested"), call(2, "start"), call(3, "start")], "starts twice"),
        ([READY, call(1, "requested"), call(2, "update")], "before its start"),
        ([READY, call(1, "requested"), call(2, "end", skipped=False)], "skipped"),
        ([READY, call(1, "requested"), call(2, "start"), call(3, "end", skipped=True)], "skipped"),
        ([READY, call(1, "requested"), call(2, "end", skipped=True), call(3, "end", skipped=True)], "after its end"),
        ([READY, life(1, "queued"), life(2, "start"), delta(4, "a", 0)], "gap"),
    ],
)
def test_faults_are_found(specs: list[Spec], fault: str) -> None:
    if not fault:
        check_stream(told(*specs))
        return
    with pytest.raises(AssertionError, match=fault):
        check_stream(told(*specs))


def test_events_of_another_run_are_found() -> None:
    specs: list[Spec] = [READY, life(1, "start"), (2, "lifecycle", {"phase": "end"}, {"runId": "other"})]
    with pytest.raises(AssertionError, match="several runs"):
        check_stream(told(*specs), ended=False)
    assert list(by_run(told(*specs))) == ["r", "other"]


def test_numbers_not_kept_after_a_crash_drop_what_had_no_end() -> None:
    resumed: Spec = (1003, "lifecycle", {"phase": "resumed"}, {"notKept": {"fromSeq": 4, "toSeq": 1002}})
    specs = [*GOOD[:4], delta(4, "lost", 2), resumed, delta(1004, "new", 0, "n"), message(1005, "end", "n", text="new")]
    checked = check_stream(told(*specs, life(1006, "end"), (1007, "done", {})))
    assert checked.texts == ["new"] and checked.not_kept == [(4, 1002)]
    late: Spec = (1003, "lifecycle", {"phase": "resumed"}, {"notKept": {"fromSeq": 5, "toSeq": 1002}})
    with pytest.raises(AssertionError, match="gap"):
        check_stream(told(*GOOD[:4], late), ended=False)
    short: Spec = (1003, "lifecycle", {"phase": "resumed"}, {"notKept": {"fromSeq": 4, "toSeq": 900}})
    with pytest.raises(AssertionError, match="does not reach"):
        check_stream(told(*GOOD[:4], short), ended=False)


def test_folded_events_cover_their_numbers() -> None:
    folded = delta(4, "日😀b", 0, firstSeq=3)
    check_stream(told(*GOOD[:3], folded, *GOOD[6:]))
    inside = delta(4, "b", 2, firstSeq=4)
    check_stream(told((3, "ready", {}), inside, *GOOD[6:]), after=3)
    with pytest.raises(AssertionError, match="gap"):
        check_stream(told(*GOOD[:2], folded, *GOOD[6:]))


def test_reset_and_replace() -> None:
    specs = [delta(1, "AAA", 0), message(2, "reset"), delta(3, "BBB", 0), message(4, "end", text="BBB", length=3)]
    assert joined_text(told(*specs)) == {"m": "BBB"}
    specs = [delta(1, "AAA", 0), message(2, "replace", text="C"), delta(3, "D", 1), message(4, "end", text="CD")]
    assert joined_text(told(*specs)) == {"m": "CD"}
    resets = life(2, "resumed", resets=["m"])
    assert joined_text(told(delta(1, "AAA", 0), resets, delta(3, "B", 0, "n"))) == {"n": "B"}


def test_a_filtered_stream_only_rises() -> None:
    specs: list[Spec] = [READY, life(2, "start"), (5, "heartbeat", {}), life(6, "end"), (7, "done", {})]
    check_stream(told(*specs), filtered=True)
    with pytest.raises(AssertionError, match="gap"):
        check_stream(told(*specs))


def test_a_gap_event_moves_the_place() -> None:
    specs: list[Spec] = [READY, (3, "gap", {}), (3, "snapshot", {}), delta(4, "b", 2), life(5, "end"), (6, "done", {})]
    assert check_stream(told(*specs)).texts == ["b"]
