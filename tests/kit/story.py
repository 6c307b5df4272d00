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
