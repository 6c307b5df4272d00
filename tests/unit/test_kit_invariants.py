"""The invariant checks on a small database: a good one passes, and each way to break it is named."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import create_engine

from app.store.tables import metadata
from tests.kit.invariants import check_at_rest, check_invariants

ASKED = '{"parts":[{"type":"text","text":"hi"}]}'
CALLED = '{"parts":[{"type":"toolCall","toolCallId":"c","name":"f","args":"{}"}]}'
RESULT = '{"parts":[{"type":"toolResult","toolCallId":"c","name":"f","content":"x","isError":false}]}'
SAID = '{"parts":[{"type":"text","text":"well"}]}'


class Small:
    """A database with one session and one ended run of four transcript entries."""

    def __init__(self, path: Path) -> None:
        self.path = path
        engine = create_engine(f"sqlite:///{path}")
        metadata.create_all(engine)
        engine.dispose()
        self.connection = sqlite3.connect(path, isolation_level=None)
        self._fill()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Callable[..., list[dict[str, Any]]]]:
        reader = sqlite3.connect(self.path)
        reader.row_factory = sqlite3.Row
        yield lambda sql, *values: [dict(row) for row in reader.execute(sql, values)]
        reader.close()

    def put(self, table: str, **values: Any) -> None:
        """Insert a row; columns that are not named and may not be null get 0 or an empty text."""
        for _, name, kind, required, default, _ in self.connection.execute(f'PRAGMA table_info("{table}")').fetchall():
            if required and default is None and name not in values and (table, name) != ("audit", "seq"):
                values[name] = 0 if kind in ("INTEGER", "BIGINT", "BOOLEAN") else ""
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" for _ in values)
        self.connection.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', list(values.values()))

    def event(self, seq: int, stream: str, data: dict[str, Any], **more: Any) -> None:
        payload = orjson.dumps(data).decode()
        row = {"run_id": "r", "session_id": "s", "seq": seq, "first_seq": seq, "stream": stream, "payload": payload}
        self.put("run_event", **{**row, "take_no": 1, **more})

    def _fill(self) -> None:
        counters = {"next_accept": 2, "next_entry": 5, "takes": 1, "queue_seq": 1}
        self.put("worker", id="w")
        self.put("session", id="s", key="k", transcript_id="t", lane="idle", lane_gen=3, **counters)
        times = {"accepted_at": 5, "started_at": 6, "ended_at": 9}
        self.put(
            "run", id="r", session_id="s", accept_no=1, status="succeeded", outcome="completed", attempt=1, take_no=1,
            seq_first=1, seq_last=9, seq_high=9, transcript_id="t", **times,
        )  # fmt: skip
        self.put("run_text", run_id="r")
        self.put("idem", key="i", run_id="r", answer="{}")
        for number, (role, payload) in enumerate(
            [("user", ASKED), ("assistant", CALLED), ("tool", RESULT), ("assistant", SAID)], start=1
        ):
            named = {"entry_id": f"e{number}", "message_id": f"m{number}", "kind": "message", "attempt": 1}
            self.put("transcript", transcript_id="t", entry_no=number, run_id="r", role=role, payload=payload, **named)
        self.event(1, "lifecycle", {"phase": "queued"}, q=1, take_no=None)
        self.event(2, "lifecycle", {"phase": "start"}, q=1)
        self.event(3, "assistant", {"messageId": "m4", "delta": "we", "offset": 0})
        self.event(4, "assistant", {"messageId": "m4", "delta": "ll", "offset": 2})
        self.event(5, "assistant", {"messageId": "m4", "phase": "end", "text": "well", "length": 4})
        for seq, phase in enumerate(("requested", "start", "end"), start=6):
            self.event(seq, "tool", {"phase": phase, "toolCallId": "c", "outcome": "ok"})
        self.event(9, "lifecycle", {"phase": "end", "outcome": "completed"}, terminal=1)
        self.put(
            "tool_call", id="c", run_id="r", entry_no=2, ordinal=0, attempt=1, state="done", kind="local", name="f",
            args="{}", call_ref="ref", result='{"messageId":"m3","text":"x"}',
        )  # fmt: skip
        self.put("audit", event_id="a3", run_id="r", kind="tool_action", action="tool.start", call_ref="ref")
        self.put(
            "audit",
            event_id="a4",
            run_id="r",
            kind="tool_action",
            action="tool.end",
            call_ref="ref",
            status="succeeded",
        )
        self.put("audit", event_id="a1", run_id="r", action="run.start", status="started")
        self.put("audit", event_id="a2", run_id="r", action="run.end", status="succeeded", code="completed")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    one = Small(tmp_path / "small.db")
    yield one
    one.connection.close()


def test_a_good_database_passes(small: Small) -> None:
    check_invariants(small, accepted=["r"], capacity=1)
    check_at_rest(small, accepted=["r"])
    with pytest.raises(AssertionError, match="not folded"):
        check_at_rest(small, folded=True)


@pytest.mark.parametrize(
    ("change", "breach"),
    [
        ("DELETE FROM run_event WHERE terminal", "INV-2"),
        ("UPDATE run SET status = 'running'", "INV-2"),
        ("UPDATE run_event SET terminal = 0; UPDATE run_event SET terminal = 1 WHERE seq = 5", "INV-2.*after"),
        ("UPDATE run SET status = 'queued'", "INV-3"),
        ("UPDATE run SET status = 'running'", "INV-4"),
        ("UPDATE session SET next_accept = 3", "INV-6.*accept_no"),
        ("UPDATE session SET next_entry = 4", "INV-6.*entry_no"),
        ("UPDATE session SET takes = 2", "INV-6.*take_no"),
        ("UPDATE session SET queue_seq = 2", "INV-6.*: q "),
        ("DELETE FROM run_event WHERE seq = 3", "INV-7"),
        ("UPDATE run_event SET first_seq = 2 WHERE seq = 3", "INV-7"),
        ("UPDATE run_event SET not_kept_from = 3 WHERE seq = 4", "INV-7"),
        ("UPDATE run SET seq_last = 10, seq_high = 10", "INV-7"),
        ("UPDATE run SET seq_high = 5", "INV-7"),
        ("UPDATE transcript SET payload = replace(payload, 'well', 'wall')", "INV-9.*kept 'wall'"),
        ("UPDATE run_event SET payload = replace(payload, 'ell', 'all') WHERE seq = 5", "INV-9"),
        ("DELETE FROM transcript WHERE entry_no = 4", "INV-9.*not in the transcript"),
        ("DELETE FROM transcript WHERE entry_no > 2", "INV-11.*unanswered"),
        ("DELETE FROM transcript WHERE entry_no = 3", "INV-11.*before the results"),
        ("DELETE FROM transcript WHERE entry_no = 2", "INV-11.*are due"),
        ("DELETE FROM tool_call", "INV-11.*in the transcript alone"),
        ("UPDATE tool_call SET args = '[]'", "INV-11.*in its row"),
        ("UPDATE tool_call SET result = replace(result, ':\"x', ':\"y')", "INV-11.*another result"),
        ("UPDATE tool_call SET state = 'intended'", "INV-12.*its result"),
        ("UPDATE tool_call SET result = NULL", "INV-12.*None"),
        ("UPDATE run_event SET payload = replace(payload, 'start', 'update') WHERE seq = 7", "INV-12.*events"),
        ("UPDATE tool_call SET state = 'skipped'", "INV-12.*events"),
        ("UPDATE tool_call SET state = 'planned', result = NULL", "INV-13"),
        ("DELETE FROM audit WHERE event_id = 'a4'", "INV-21.*ledger rows"),
        ("UPDATE audit SET status = 'failed' WHERE event_id = 'a4'", "INV-21.*in the ledger failed"),
        ("UPDATE run SET abort_at = 7, abort_code = 'cancelled'", "INV-14"),
        ("UPDATE idem SET run_id = 'x'", "INV-15"),
        ("UPDATE run_event SET payload = replace(payload, 'start', 'queued') WHERE seq = 2", "INV-15"),
        ("UPDATE transcript SET attempt = 2 WHERE entry_no = 4", "INV-16"),
        ("UPDATE run SET stalled = 5", "INV-17"),
        ("UPDATE run SET outcome = 'silent'", "INV-21.*different outcomes"),
        ("UPDATE audit SET status = 'failed' WHERE event_id = 'a2'", "INV-21.*ledger"),
        ("DELETE FROM audit WHERE event_id = 'a1'", "INV-21.*0 starts"),
        ("UPDATE run SET ended_at = 4", "INV-21.*ended at"),
    ],
)
def test_each_breach_is_named(small: Small, change: str, breach: str) -> None:
    small.connection.executescript(change)
    with pytest.raises(AssertionError, match=breach):
        check_invariants(small)


def test_jumps_and_folded_rows_are_fine(small: Small) -> None:
    small.connection.execute("UPDATE run_event SET seq = 1009, first_seq = 1009, not_kept_from = 9 WHERE seq = 9")
    small.connection.execute("UPDATE run SET seq_last = 1009, seq_high = 1009")
    small.connection.execute("DELETE FROM run_event WHERE seq = 3")
    small.connection.execute(
        """UPDATE run_event SET first_seq = 3, payload = '{"messageId":"m4","delta":"well","offset":0}' WHERE seq = 4"""
    )
    check_invariants(small)


def test_accepted_capacity_and_rest(small: Small) -> None:
    with pytest.raises(AssertionError, match="INV-20"):
        check_invariants(small, accepted=["r", "lost"])
    with pytest.raises(AssertionError, match="INV-18"):
        small.connection.execute("UPDATE run SET status = 'running'")
        check_invariants(small, capacity=0)
    small.connection.execute("UPDATE run SET status = 'succeeded'")
    small.connection.execute("UPDATE session SET writer_run = 'r'")
    with pytest.raises(AssertionError, match="writer r"):
        check_at_rest(small)
