"""When a run is folded, each long text of its is left in one place, and every reader gets the same as before."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from sqlalchemy import Connection, Table, insert, select

from app.domain import event as ev
from app.domain import tool_event
from app.domain.borrowing import ENTRY_CHARS_MAX
from app.domain.event import Event, Told
from app.domain.message import Message, TextPart, ToolCallPart
from app.domain.run import RunInput
from app.domain.tool_call import CallResult
from app.store import tables as t
from app.store.queries.events import page_after, snapshot
from app.store.queries.runs import record
from app.store.transaction import lend
from app.store.transaction.entries import message_text
from app.store.transaction.fold import FoldStep, fold_some
from app.store.transaction.ledger import put_events
from tests.kit.database import Make, StoreKind

RUN = "run"
ASKED = "please, in your own words " * 30
FOUND = "a line of a file é\n" * 100
SAID = "an answer 😀 of some length " * 40
CALL = ToolCallPart("call", "read", '{"path":"x"}')
RESULT = CallResult("m-result", FOUND, "completed", is_error=False)
SIZE_MAX = 60_000


def messages(said: str) -> list[Message]:
    return [
        Message("user", "m-asked", (TextPart(ASKED),), source="api"),
        Message("assistant", "m-call", (CALL,), stop_reason="tool"),
        RESULT.message(CALL),
        Message("assistant", "m-said", (TextPart(said),), stop_reason="stop"),
    ]


def told(said: str) -> list[Told]:
    asked = {"messageId": "m-asked", "parts": [TextPart(ASKED).to_json()], "source": "api"}
    pieces = [said[at : at + 50_000] for at in range(0, len(said), 50_000)]
    places = [sum(map(len, pieces[:number])) for number in range(len(pieces))]
    return [
        ev.queued(asked, {"state": "queued"}, SIZE_MAX),
        tool_event.ended("m-call", CALL, RESULT, FOUND, truncated=False),
        *[("assistant", ev.message_delta("m-said", *one), False) for one in zip(pieces, places, strict=True)],
        ev.message_ended("assistant", "m-said", said, "stop", SIZE_MAX),
        ("lifecycle", b'{"phase":"end","final":true}', True),
    ]


def put_run(conn: Connection, said: str = SAID, mine: str = "") -> None:
    """A run that asked a tool and answered, as it is after its end."""
    session = {
        "id": "s", "key": "agent:main:x", "agent": "main", "principal": "local", "transcript_id": "t", "lane": "idle",
        "lane_gen": 1, "next_accept": 2, "next_entry": 5, "takes": 1, "queue_seq": 1, "created_at": 1, "updated_at": 1,
        "last_input_at": 1,
    }  # fmt: skip
    conn.execute(insert(t.session), session)
    events = [
        Event(RUN, number, stream, 5, payload, terminal=terminal)
        for number, (stream, payload, terminal) in enumerate(told(said), start=1)
    ]
    row = {
        "id": RUN, "session_id": "s", "accept_no": 1, "principal": "local", "agent": "main", "mode": "followup",
        "kind": "message", "prio": 0, "runnable_at": 0, "lane_name": "main", "attempt": 1, "stalled": 0, "seq_first": 1,
        "seq_high": len(events), "seq_last": len(events), "active_ms": 0, "transcript_id": "t", "model": "a:b",
        "accepted_at": 1, "started_at": 2, "ended_at": 9, "status": "succeeded", "outcome": "completed",
    }  # fmt: skip
    conn.execute(insert(t.run), row)
    asked = RunInput(
        message_id="m-asked",
        parts=[TextPart(ASKED).to_json()],
        source="api",
        model="a:b",
        timeout_seconds=1.0,
        thinking=None,
        reasoning="off",
        extra_system_prompt=FOUND,
        reply_required=True,
        metadata={"mine": mine},
    )
    reply = {"payloads": [{"kind": "text", "text": said}], "usage": None}
    texts = {"input": orjson.dumps(asked.to_json()).decode(), "reply": orjson.dumps(reply).decode()}
    conn.execute(insert(t.run_text), {"run_id": RUN, **texts})
    call = {
        "id": CALL.tool_call_id, "run_id": RUN, "entry_no": 2, "ordinal": 0, "attempt": 1, "state": "done",
        "kind": "local", "name": "read", "call_id": "", "call_ref": "r", "args": CALL.args, "result": RESULT.to_text(),
    }  # fmt: skip
    conn.execute(insert(t.tool_call), call)
    put_events(conn, events, "s", take_no=1, q=None)
    for entry_no, message in enumerate(messages(said), start=1):
        entry = {
            "transcript_id": "t", "entry_no": entry_no, "entry_id": f"e{entry_no}", "run_id": RUN, "attempt": 1,
            "kind": "message", "role": message.role, "message_id": message.message_id,
            "payload": message_text(message), "aborted": False, "created_at": 5,
        }  # fmt: skip
        conn.execute(insert(t.transcript), entry)


def fold_whole(conn: Connection) -> int:
    """Fold all; returns in how many steps of the store."""
    steps, step = 1, FoldStep(more=False)
    while (step := fold_some(conn, 100, 100, SIZE_MAX, 0, step)).more:
        steps += 1
        assert steps < 50
    return steps


def views(conn: Connection) -> list[Any]:
    """What readers get of the run."""
    events = [[event.body() for event in page_after(conn, RUN, cursor)] for cursor in range(6)]
    return [*events, record(conn, RUN, "local"), snapshot(conn, RUN, "local", lambda _conn, _run: {})]


def copies(conn: Connection, text: str) -> list[str]:
    """The tables that have a text, each as often as it has."""
    quoted = orjson.dumps(text).decode()[1:-1]
    found: list[str] = []
    tables: list[Table] = [t.run_event, t.run_text, t.tool_call, t.transcript]
    for table in tables:
        for row in conn.execute(select(table)).all():
            found += [table.name] * sum(str(value).count(quoted) for value in row)
    return found


def test_a_long_text_is_kept_in_the_transcript_alone(bases: dict[StoreKind, Make], store_kind: StoreKind) -> None:
    with bases[store_kind]() as conn:
        put_run(conn)
        before = views(conn)
        assert sorted(copies(conn, SAID)) == ["run_event", "run_event", "run_text", "transcript"]
        assert fold_whole(conn) > 1
        assert views(conn) == before
        assert copies(conn, SAID) == copies(conn, ASKED) == ["transcript"]
        assert copies(conn, FOUND) == ["run_text", "transcript"], "once in a prompt that is in no entry"
        rows = [conn.execute(select(table)).all() for table in (t.run_event, t.run_text, t.tool_call)]
        assert fold_whole(conn) == 1
        assert [conn.execute(select(table)).all() for table in (t.run_event, t.run_text, t.tool_call)] == rows


def test_metadata_is_the_callers_own(bases: dict[StoreKind, Make], store_kind: StoreKind) -> None:
    """It is read without the transcript, whatever stands in it."""
    with bases[store_kind]() as conn:
        put_run(conn, mine=ASKED)
        before = views(conn)
        fold_whole(conn)
        assert views(conn) == before


def test_a_step_ends_after_some_characters(
    bases: dict[StoreKind, Make], store_kind: StoreKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it ends, readers get the same, and nothing is left out."""
    monkeypatch.setattr(lend, "STEP_CHARS", 1)
    monkeypatch.setattr("app.store.transaction.fold.LOOKS", 1)
    said = SAID * 200
    with bases[store_kind]() as conn:
        put_run(conn, said)
        before = views(conn)
        steps, step = 0, FoldStep(more=False)
        while (step := fold_some(conn, 100, 100, SIZE_MAX, 0, step)).more:
            steps += 1
            assert views(conn) == before
            assert steps < 50
        assert steps > 5
        assert copies(conn, SAID * 2)[0] == copies(conn, SAID * 2)[-1] == "transcript"


def test_an_entry_that_is_too_long_to_be_read_for_each_page_lends_nothing(
    bases: dict[StoreKind, Make], store_kind: StoreKind
) -> None:
    said = "x" * (ENTRY_CHARS_MAX + 1)
    with bases[store_kind]() as conn:
        put_run(conn, said)
        before = views(conn)
        fold_whole(conn)
        assert views(conn) == before
        assert copies(conn, said) == ["run_text", "transcript"]
