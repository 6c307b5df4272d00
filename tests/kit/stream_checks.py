"""What every stream must satisfy: numbers without gap or double, one end, text that adds up.

`check_stream` raises AssertionError with the place; `joined_text` applies the documented rules of a reader
(offset, reset, replace, end, not-kept numbers, snapshot) and gives the text of each message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.kit.sse_parser import Event

CONTROL = frozenset({"ready", "accepted", "heartbeat", "snapshot", "gap", "shutdown", "problem", "done"})
AFTER_THE_END = frozenset({"done", "ready", "heartbeat", "shutdown", "accepted"})


@dataclass(slots=True)
class MessageText:
    """A message as a reader holds it. `start` is the code point at which the reader began to know it."""

    text: str = ""
    start: int = 0
    ended: bool = False
    stop_reason: str | None = None


@dataclass(slots=True)
class Checked:
    """What a checked stream said."""

    events: list[Event]
    """Numbered events, control events left out."""
    messages: dict[str, MessageText]
    terminal: Event | None = None
    done: Event | None = None
    not_kept: list[tuple[int, int]] = field(default_factory=list)
    whole: bool = True
    """It holds the run from its beginning, nothing left out."""

    @property
    def outcome(self) -> str | None:
        """`outcome` of an `end`, the code of an `error`."""
        if self.terminal is None:
            return None
        payload = self.terminal.payload
        return payload.get("outcome") if self.terminal.phase == "end" else (payload.get("error") or {}).get("code")

    @property
    def texts(self) -> list[str]:
        """The messages' texts in order of appearance."""
        return [message.text for message in self.messages.values()]

    @property
    def phases(self) -> list[str]:
        """All as `stream:phase`, deltas as `assistant:delta`."""
        return [f"{event.stream}:{event.phase or 'delta'}" for event in self.events]


def joined_text(events: Iterable[Event], stream: str = "assistant") -> dict[str, str]:
    """The text of each message by its id, as a reader that follows the rules shows it."""
    return {message_id: message.text for message_id, message in joined_messages(events, stream).items()}


def joined_messages(
    events: Iterable[Event], stream: str = "assistant", *, partial: bool | None = None
) -> dict[str, MessageText]:
    """As `joined_text`, with the marks. AssertionError where an offset or an end text does not fit.

    `partial`: the reader did not begin at the start of the run; by default the first number tells.
    """
    held: dict[str, MessageText] = {}
    for event in events:
        if partial is None and event.first_seq is not None:
            partial = event.first_seq > 1
        if event.stream in ("gap", "snapshot"):
            held.clear()
            partial = True
        if event.data.get("notKept") if isinstance(event.data, dict) else None:
            held = {message_id: message for message_id, message in held.items() if message.ended}
        for message_id in event.payload.get("resets") or ():
            held.pop(str(message_id), None)
        if event.stream == stream:
            _apply(held, event, bool(partial))
    return held


def by_run(events: Iterable[Event]) -> dict[str, list[Event]]:
    """The numbered events of a stream that carries several runs, run by run."""
    runs: dict[str, list[Event]] = {}
    for event in events:
        if event.run_id is not None and event.stream not in CONTROL:
            runs.setdefault(event.run_id, []).append(event)
    return runs


def check_stream(
    events: Sequence[Event],
    after: int = 0,
    *,
    ended: bool = True,
    filtered: bool = False,
    cursor_is_seq: bool = True,
) -> Checked:
    """Check one run's events, from one connection or joined over several.

    `after`: the cursor it began from (at the run's last number `done` alone is right). `ended`: it must have its
    terminal event and `done`. `filtered`: streams were left out, so numbers only rise. `cursor_is_seq=False`: a session
    stream's cut by `by_run`, whose ids are opaque.
    """
    whole = after == 0 and not filtered and all(event.stream != "gap" for event in events)
    checked = Checked([], {}, whole=whole)
    place = after
    for event in events:
        where = f"event {event.id!r} {event.stream}:{event.phase}"
        if event.stream == "done":
            checked.done = event
        if checked.terminal is not None:
            assert event.stream in AFTER_THE_END, f"{where} comes after the terminal event"
        if event.stream in CONTROL:
            if cursor_is_seq:
                place = _check_control(event, place, filtered, where)
            continue
        place = _check_number(checked, event, place, filtered, where)
        if cursor_is_seq:
            assert event.id == str(event.seq), f"{where}: id and seq {event.seq} differ"
        if event.terminal:
            checked.terminal = event
        checked.events.append(event)
    _check_one_run(checked)
    _check_tools(checked)
    checked.messages = joined_messages(events, partial=after > 0 or filtered)
    if ended:
        only_done = after > 0 and not checked.events and checked.done is not None
        assert checked.terminal is not None or only_done, f"no terminal lifecycle event; the last: {_tail(events)}"
        assert checked.done is not None or not cursor_is_seq, f"no done; the last: {_tail(events)}"
    return checked


def _check_number(checked: Checked, event: Event, place: int, filtered: bool, where: str) -> int:
    assert event.seq is not None and event.first_seq is not None, f"{where}: no number"
    assert event.first_seq <= event.seq, f"{where}: firstSeq {event.first_seq} is above seq {event.seq}"
    assert event.seq > place, f"{where}: seq {event.seq} after {place}: a double"
    not_kept = event.data.get("notKept")
    if not_kept is not None:
        low, high = not_kept["fromSeq"], not_kept["toSeq"]
        assert low <= high == event.first_seq - 1, f"{where}: notKept {not_kept} does not reach {event.first_seq}"
        assert filtered or low <= place + 1, f"{where}: a gap between {place} and notKept {not_kept}"
        checked.not_kept.append((low, high))
    elif not filtered:
        assert event.first_seq <= place + 1, f"{where}: a gap between {place} and {event.first_seq}"
    return event.seq


def _check_control(event: Event, place: int, filtered: bool, where: str) -> int:
    if event.stream in ("gap", "snapshot") and event.id is not None:
        return int(event.id)
    if event.id is None:
        return place
    named = int(event.id)
    if event.stream == "done":
        assert filtered or named == place + 1, f"{where}: done has id {named} behind {place}"
        return place
    if filtered:
        assert named >= place, f"{where}: cursor goes back from {place} to {named}"
        return named
    assert named == place, f"{where}: cursor {named}, but the last number was {place}"
    return place


def _check_one_run(checked: Checked) -> None:
    runs = {event.run_id for event in checked.events}
    assert len(runs) <= 1, f"events of several runs: {runs}"


def _check_tools(checked: Checked) -> None:
    """Each call: asked for once, begun at most once, one end; `skipped` exactly when it was not begun."""
    asked: set[str] = set()
    begun: set[str] = set()
    over: set[str] = set()
    for event in checked.events:
        if event.stream != "tool":
            continue
        call = str(event.payload.get("toolCallId"))
        assert call not in over, f"tool {call}: {event.phase} after its end"
        match event.phase:
            case "requested":
                assert call not in asked, f"tool {call} is requested twice"
                asked.add(call)
            case "start":
                assert call in asked or not checked.whole, f"tool {call} starts unrequested"
                assert call not in begun, f"tool {call} starts twice"
                begun.add(call)
            case "update":
                assert call in begun or not checked.whole, f"tool {call} shows something before its start"
            case "end":
                assert call in asked or not checked.whole, f"tool {call} ends unrequested"
                if checked.whole:
                    assert event.payload["skipped"] == (call not in begun), f"tool {call}: {event.payload}"
                over.add(call)
    if checked.terminal is not None:
        assert not (asked | begun) - over, f"tools without an end: {(asked | begun) - over}"


def _apply(held: dict[str, MessageText], event: Event, partial: bool) -> None:
    payload = event.payload
    message_id = str(payload["messageId"])
    where = f"message {message_id} at {event.id!r}"
    phase = payload.get("phase")
    if phase == "reset":
        held.pop(message_id, None)
    elif phase == "replace":
        message = held.setdefault(message_id, MessageText())
        assert not message.ended, f"{where}: replaced after its end"
        message.text, message.start = payload["text"], 0
    elif phase == "end":
        if partial and message_id not in held:
            whole = payload.get("text") or ""
            held[message_id] = MessageText(start=payload.get("length", len(whole)) - len(whole), text=whole)
        _end(held.setdefault(message_id, MessageText()), payload, where)
    elif phase is None:
        _extend(held, message_id, payload, partial, where)


def _extend(held: dict[str, MessageText], message_id: str, payload: dict[str, Any], partial: bool, where: str) -> None:
    piece, offset = payload["delta"], payload["offset"]
    assert piece, f"{where}: an empty delta"
    message = held.get(message_id)
    if message is None:
        assert offset == 0 or partial, f"{where}: begins at offset {offset}"
        message = held[message_id] = MessageText(start=offset)
    assert not message.ended, f"{where}: a delta after the end"
    place = message.start + len(message.text)
    assert offset == place, f"{where}: offset {offset}, but {place} code points are there"
    message.text += piece


def _end(message: MessageText, payload: dict[str, Any], where: str) -> None:
    assert not message.ended, f"{where}: ends twice"
    message.ended = True
    message.stop_reason = payload.get("stopReason")
    whole = payload.get("text")
    if whole is not None and message.start == 0:
        assert message.text == whole, f"{where}: deltas give {message.text!r:.200}, its end says {whole!r:.200}"
    elif whole is not None:
        assert whole.endswith(message.text), f"{where}: deltas are no tail of the end text"
        message.text, message.start = whole, 0
    length = payload.get("length")
    if length is not None:
        place = message.start + len(message.text)
        assert length == place, f"{where}: length {length}, but {place} code points came"


def _tail(events: Sequence[Event]) -> list[tuple[str | None, str, str | None]]:
    return [(event.id, event.stream, event.phase) for event in events[-4:]]
