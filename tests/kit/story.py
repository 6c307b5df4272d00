"""What a stream told, however its deltas were cut: a run gives the same story live, on replay and when folded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.kit.sse_parser import Event
from tests.kit.stream_checks import CONTROL

Line = tuple[str, Any]


def story(events: Iterable[Event]) -> list[Line]:
    """Numbered events in order; deltas that follow each other in one message are joined into one line."""
    told: list[Line] = []
    for event in events:
        if event.stream in CONTROL:
            continue
        piece = event.payload.get("delta")
        if piece is None:
            told.append((event.stream, event.payload))
            continue
        place = (event.stream, str(event.payload["messageId"]))
        if told and told[-1][0] == "+".join(place):
            told[-1] = (told[-1][0], told[-1][1] + piece)
        else:
            told.append(("+".join(place), piece))
    return told


def behind(events: Iterable[Event], cursor: int) -> list[Event]:
    """The numbered events that a reader at this cursor has still to get."""
    return [event for event in events if event.stream not in CONTROL and (event.seq or 0) > cursor]


def same_rest(whole: Iterable[Event], rest: Iterable[Event], cursor: int) -> bool:
    """Whether a reader at this cursor got what a reader of all got behind it.

    A delta that was folded since, around the cursor, goes on inside: then the end of the one is the other.
    """
    wanted, got = behind(whole, cursor), behind(rest, cursor)
    lines, told = story(wanted), story(got)
    if lines != told and (wanted[0].first_seq or 0) <= cursor and lines[0][0] == told[0][0]:
        inside = got[0].payload["offset"] - wanted[0].payload["offset"]
        lines[0] = (lines[0][0], lines[0][1][inside:])
    return lines == told
