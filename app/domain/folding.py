"""Folding: deltas of one message that stand right behind each other become one event, and every number stays a cursor.

The folded event stands under its last number, covers the others, and knows the length of each, so that a reader who
stands inside it gets the rest by offset. What a reset took back folds to that reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import orjson

from app.domain.event import Event, message_delta, message_reset

STREAMS = ("assistant", "thinking")
"""Whose deltas are folded."""

_FIRST = 0x21
_DIRECT = 0x5D
"""A length below this is one printable character; a longer one is `~`, its decimal digits, and `;`."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A row that can be folded: its numbers, its message, and its text with where it begins."""

    first_seq: int
    seq: int
    stream: str
    message_id: str
    text: str
    offset: int
    lengths: tuple[int, ...]
    """Code points that each of its numbers brought."""


def delta_of(event: Event, cuts: str | None) -> Delta | None:
    """The delta that an event is; None for every other event. `cuts`: as `cuts_text` wrote them for a folded one."""
    if event.stream not in STREAMS or event.not_kept_from is not None or b'"delta":' not in event.payload:
        return None
    data = orjson.loads(event.payload)
    if "delta" not in data:
        return None
    text = data["delta"]
    lengths = (len(text),) if cuts is None else tuple(read_cuts(cuts))
    return Delta(event.first_seq, event.seq, event.stream, data["messageId"], text, data["offset"], lengths)


def stretch(deltas: Sequence[Delta | None], bytes_max: int) -> Sequence[Delta]:
    """The first run of at least two deltas that can be one text of so many bytes in JSON; empty when there is none."""
    held: list[Delta] = []
    size = 0
    for one in deltas:
        room = 0 if one is None else len(orjson.dumps(one.text))
        if one is not None and held and _continues(held[-1], one) and size + room <= bytes_max:
            held.append(one)
            size += room
            continue
        if len(held) > 1:
            break
        held, size = ([one], room) if one is not None else ([], 0)
    return held if len(held) > 1 else []


def _continues(before: Delta, after: Delta) -> bool:
    return (
        after.first_seq == before.seq + 1
        and (after.stream, after.message_id) == (before.stream, before.message_id)
        and after.offset == before.offset + len(before.text)
    )


@dataclass(frozen=True, slots=True)
class Folded:
    """The one row that stands for several. `cuts` is None where nothing of the text is kept."""

    first_seq: int
    seq: int
    payload: bytes
    cuts: str | None


def joined(deltas: Sequence[Delta]) -> Folded:
    """Deltas of one stretch as one row."""
    first, last = deltas[0], deltas[-1]
    text = "".join(one.text for one in deltas)
    lengths = [length for one in deltas for length in one.lengths]
    return Folded(first.first_seq, last.seq, message_delta(first.message_id, text, first.offset), cuts_text(lengths))


def emptied(deltas: Sequence[Delta]) -> list[Folded]:
    """Deltas of a message that was taken back: each unbroken stretch as one more reset, which says no more."""
    rows: list[Folded] = []
    for one in deltas:
        if rows and rows[-1].seq + 1 == one.first_seq:
            rows[-1] = replace(rows[-1], seq=one.seq)
        else:
            payload = message_reset(one.stream, one.message_id)[1]
            rows.append(Folded(one.first_seq, one.seq, payload, None))
    return rows


def rest_of(event: Event, cuts: str | None, cursor: int) -> Event:
    """The part of a folded event behind a cursor that lies inside it."""
    assert event.first_seq <= cursor < event.seq, "the cursor lies inside"
    payload = event.payload
    if cuts is not None:
        data = orjson.loads(payload)
        seen = sum(list(read_cuts(cuts))[: cursor - event.first_seq + 1])
        payload = message_delta(data["messageId"], data["delta"][seen:], data["offset"] + seen)
    return Event(event.run_id, event.seq, event.stream, event.ts, payload, first_seq=cursor + 1)


def cuts_text(lengths: Iterable[int]) -> str:
    """Lengths as text: mostly one character each."""
    return "".join(chr(_FIRST + length) if length < _DIRECT else f"~{length};" for length in lengths)


def read_cuts(text: str) -> Iterable[int]:
    """The inverse of `cuts_text`."""
    at = 0
    while at < len(text):
        if text[at] == "~":
            end = text.index(";", at)
            yield int(text[at + 1 : end])
            at = end + 1
        else:
            yield ord(text[at]) - _FIRST
            at += 1
