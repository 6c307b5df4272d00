"""Folding an ended run changes no reader's view: every cursor that was ever given out goes on to the same whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, insert, select, update

from app.domain import borrowing, folding
from app.domain import event as ev
from app.domain.event import Event
from app.domain.folding import cuts_text, read_cuts
from app.domain.message import Message, Part, TextPart, ThinkingPart
from app.store import tables as t
from app.store.queries import events as queries
from app.store.transaction import fold as folds
from app.store.transaction.entries import message_text
from app.store.transaction.fold import BEGIN, fold, unfolded
from app.store.transaction.ledger import put_events
from tests.kit.database import Make, StoreKind
from tests.kit.invariants import event_of
from tests.kit.sse_parser import Event as Told
from tests.kit.stream_checks import check_stream, joined_messages

RUN = "r"
TEXTS = st.text(st.sampled_from('ab \n"\\é日😀\x01'), min_size=1, max_size=6)


@dataclass
class Writing:
    """Makes a run's events as a recorder does: messages of two streams, resets, calls, crashes with a jump."""

    events: list[Event] = field(default_factory=list)
    entries: list[Message] = field(default_factory=list)
    seq: int = 0
    messages: int = 0
    lengths: dict[str, int] = field(default_factory=dict)

    def put(self, stream: str, payload: bytes, *, jump: int = 0, terminal: bool = False) -> None:
        start = self.seq + 1
        self.seq = start + jump
        lost = start if jump else None
        self.events.append(Event(RUN, self.seq, stream, 5, payload, not_kept_from=lost, terminal=terminal))

    def delta(self, stream: str, text: str) -> None:
        offset = self.lengths.get(stream, 0)
        self.put(stream, ev.message_delta(f"m{self.messages}", text, offset))
        self.lengths[stream] = offset + len(text)

    def close(self, how: str, texts: dict[str, str]) -> None:
        """The end, or the reset, of the open message; or a crash, whose attempt takes it back."""
        name = f"m{self.messages}"
        streams = [stream for stream in folding.STREAMS if self.lengths.get(stream)]
        if how == "crash":
            self.put("lifecycle", ev.resumed(2, 5, [name])[1], jump=7)
        for stream in streams:
            made = ev.message_ended(stream, name, texts.get(stream, ""), "stop", 1 << 20)
            self.put(stream, made[1] if how == "end" else ev.message_reset(stream, name)[1])
        if how == "end":
            self.entries.append(Message("assistant", name, _parts(texts)))
        self.messages += 1
        self.lengths = {}


def _parts(texts: dict[str, str]) -> tuple[Part, ...]:
    """As a model writes them: thinking first."""
    return ThinkingPart(texts["thinking"]), TextPart(texts["assistant"])


@st.composite
def runs(draw: st.DrawFn) -> Writing:
    writing = Writing()
    writing.put("lifecycle", b'{"phase":"queued"}')
    for _ in range(draw(st.integers(1, 4))):
        texts = {"assistant": "", "thinking": ""}
        for _ in range(draw(st.integers(0, 14))):
            kind = draw(st.sampled_from(("assistant",) * 5 + ("thinking", "thinking", "other")))
            if kind == "other":
                writing.put("lifecycle", b'{"phase":"model"}')
                continue
            text = draw(TEXTS)
            texts[kind] += text
            writing.delta(kind, text)
        writing.close(draw(st.sampled_from(("end", "end", "reset", "crash"))), texts)
    writing.put("lifecycle", b'{"phase":"end","outcome":"completed","final":true}', terminal=True)
    return writing


def stored(conn: Connection, writing: Writing) -> None:
    """The run as it is after its end."""
    events = writing.events
    nothing: dict[str, Any] = {
        "session_id": "s", "accept_no": 1, "principal": "", "agent": "", "mode": "", "kind": "", "prio": 0,
        "runnable_at": 0, "lane_name": "", "attempt": 1, "stalled": 0, "seq_first": 1, "seq_high": 0, "active_ms": 0,
        "transcript_id": "t", "model": "", "accepted_at": 0,
    }  # fmt: skip
    conn.execute(
        insert(t.run), {**nothing, "id": RUN, "status": "succeeded", "ended_at": 9, "seq_last": events[-1].seq}
    )
    put_events(conn, events, "s", take_no=1, q=None)
    for entry_no, message in enumerate(writing.entries, start=1):
        conn.execute(
            insert(t.transcript),
            {
                "transcript_id": "t", "entry_no": entry_no, "entry_id": f"e{entry_no}", "run_id": RUN, "attempt": 1,
                "kind": "message", "role": message.role, "message_id": message.message_id,
                "payload": message_text(message), "aborted": False, "created_at": 5,
            },
        )  # fmt: skip


def read(conn: Connection, cursor: int) -> list[Told]:
    """As a client at a cursor gets it, to the end."""
    told: list[Told] = []
    while page := queries.page_after(conn, RUN, cursor):
        for event in page:
            assert event.follows(cursor), f"{event.first_seq}..{event.seq} does not follow {cursor}"
            cursor = event.seq
            told.append(_told(event))
    return told


def _told(event: Event) -> Told:
    row = {
        "run_id": RUN, "seq": event.seq, "first_seq": event.first_seq, "not_kept_from": event.not_kept_from,
        "stream": event.stream, "payload": event.payload.decode(),
    }  # fmt: skip
    return event_of(row)


def held(told: list[Told]) -> dict[str, dict[str, str]]:
    """What a reader that follows the rules shows in the end."""
    return {
        stream: {name: message.text for name, message in joined_messages(told, stream, partial=False).items()}
        for stream in folding.STREAMS
    }


def cursors(events: list[Event]) -> list[int]:
    return [0, *(event.seq for event in events)]


def fold_all(conn: Connection, steps: int = 10_000, bytes_max: int = 60_000) -> None:
    place = BEGIN
    while not place.done and steps:
        place = fold(conn, RUN, place, 99, bytes_max)
        steps -= 1


@given(
    writing=runs(),
    steps=st.integers(0, 12),
    bytes_max=st.sampled_from([30, 60, 60_000]),
    page=st.sampled_from([3, 500]),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_cursor_goes_on_to_the_same_whole(  # noqa: PLR0913
    bases: dict[StoreKind, Make], store_kind: StoreKind, writing: Writing, steps: int, bytes_max: int, page: int
) -> None:
    """INV-10, before, in the middle of and after folding, by text and offset, whatever texts are kept once."""
    events = writing.events
    whole = held([_told(event) for event in events])
    folds.PAGE_ROWS, kept = page, folds.PAGE_ROWS
    folds._page = folds._page.limit(page)
    borrowing.CHARS_MIN, long = 3, borrowing.CHARS_MIN
    try:
        with bases[store_kind]() as conn:
            stored(conn, writing)
            for count in (steps, 10_000):
                fold_all(conn, count, bytes_max)
                for cursor in cursors(events):
                    before = [_told(event) for event in events if event.seq <= cursor]
                    assert held(before + read(conn, cursor)) == whole, f"from {cursor}"
                    check_stream(before + read(conn, cursor), ended=False, cursor_is_seq=False)
            assert unfolded(conn, 10**15, 10) == []
    finally:
        folds.PAGE_ROWS = kept
        borrowing.CHARS_MIN = long
        folds._page = folds._page.limit(kept)


def test_an_ended_answer_is_one_row_and_folding_again_changes_nothing(
    bases: dict[StoreKind, Make], store_kind: StoreKind
) -> None:
    writing = Writing()
    writing.put("lifecycle", b'{"phase":"queued"}')
    for number in range(2_500):
        writing.delta("assistant", f"{number} ")
    writing.close("end", {"assistant": "".join(f"{n} " for n in range(2_500)), "thinking": ""})
    writing.put("lifecycle", b'{"phase":"end"}', terminal=True)
    with bases[store_kind]() as conn:
        stored(conn, writing)
        assert unfolded(conn, 9, 10) == [RUN] and unfolded(conn, 8, 10) == []
        fold_all(conn)
        rows = conn.execute(select(t.run_event).order_by(t.run_event.c.seq)).mappings().all()
        assert [(row["first_seq"], row["seq"]) for row in rows] == [(1, 1), (2, 2501), (2502, 2502), (2503, 2503)]
        assert unfolded(conn, 10**15, 10) == []
        conn.execute(update(t.run).values(folded_at=None))
        fold_all(conn)
        assert conn.execute(select(t.run_event).order_by(t.run_event.c.seq)).mappings().all() == rows
        middle = read(conn, 1_000)
        assert middle[0].payload["delta"].startswith("999 ") and middle[0].data["firstSeq"] == 1_001


def test_what_a_reset_took_back_keeps_its_numbers_and_no_text(
    bases: dict[StoreKind, Make], store_kind: StoreKind
) -> None:
    writing = Writing()
    for text in ("secret ", "words ", "taken back"):
        writing.delta("assistant", text)
    writing.put("lifecycle", b'{"phase":"model"}')
    writing.delta("assistant", "!")
    writing.close("reset", {})
    writing.put("lifecycle", b'{"phase":"end"}', terminal=True)
    with bases[store_kind]() as conn:
        stored(conn, writing)
        fold_all(conn)
        rows = conn.execute(select(t.run_event).order_by(t.run_event.c.seq)).mappings().all()
        assert [(row["first_seq"], row["seq"], orjson.loads(row["payload"]).get("phase")) for row in rows] == [
            (1, 3, "reset"), (4, 4, "model"), (5, 5, "reset"), (6, 6, "reset"), (7, 7, "end"),
        ]  # fmt: skip
        assert "secret" not in str(rows)


def test_joined_rows_stay_below_the_limit_of_an_event(bases: dict[StoreKind, Make], store_kind: StoreKind) -> None:
    writing = Writing()
    for _ in range(300):
        writing.delta("assistant", "\x01" * 100)  # six bytes each in JSON
    writing.close("end", {"assistant": "\x01" * 30_000, "thinking": ""})
    writing.put("lifecycle", b'{"phase":"end"}', terminal=True)
    with bases[store_kind]() as conn:
        stored(conn, writing)
        fold_all(conn, bytes_max=20_000)
        sizes = [len(row.payload) for row in conn.execute(select(t.run_event)) if '"delta"' in row.payload]
        assert len(sizes) == 10 and max(sizes) < 20_000


@given(st.lists(st.one_of(st.integers(0, 120), st.integers(0, 10**7)), max_size=50))
def test_lengths_come_back_as_they_were(lengths: list[int]) -> None:
    assert list(read_cuts(cuts_text(lengths))) == lengths
