"""Bounds in small steps: runs that were kept long enough, and the ledger by age and by rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Connection, func, insert, select

from app.domain.event import Event
from app.store import tables as t
from app.store.queries.events import next_page, page_after
from app.store.transaction import remove, upkeep
from app.store.transaction.ledger import put_events
from app.store.transaction.remove import STEP_ROWS, STEP_RUNS, remove_runs
from app.store.transaction.upkeep import STEP_ROWS as LEDGER_STEP_ROWS
from app.store.transaction.upkeep import bound_audit
from tests.kit.database import Make, StoreKind


def put_run(conn: Connection, name: str, *, ended_at: int | None, events: int = 3, folded: bool = True) -> None:
    """A run that was accepted at 1, with its text, events, a call and a key."""
    row: dict[str, Any] = {
        "session_id": "s", "accept_no": 1, "principal": "", "agent": "", "mode": "", "kind": "", "prio": 0,
        "runnable_at": 0, "lane_name": "", "attempt": 1, "stalled": 0, "seq_first": 1, "seq_high": events,
        "seq_last": events, "active_ms": 0, "transcript_id": "t", "model": "", "accepted_at": 1,
        "status": "queued" if ended_at is None else "succeeded", "ended_at": ended_at,
        "folded_at": ended_at if folded else None,
    }  # fmt: skip
    number = conn.execute(select(func.count()).select_from(t.run)).scalar_one()
    conn.execute(insert(t.run), {**row, "id": name, "accept_no": number})
    conn.execute(insert(t.run_text), {"run_id": name, "input": "{}"})
    call = {
        "id": f"call {name}", "run_id": name, "entry_no": 1, "ordinal": 0, "attempt": 1, "state": "done",
        "kind": "local", "name": "list", "call_id": "c", "call_ref": "r", "args": "{}",
    }  # fmt: skip
    conn.execute(insert(t.tool_call), call)
    key = {"principal": "", "route": "", "key": name, "body_hash": "", "run_id": name, "answer": "", "created_at": 1}
    conn.execute(insert(t.idem), key)
    told = [Event(name, seq, "lifecycle", 5, b"{}", terminal=seq == events) for seq in range(1, events + 1)]
    put_events(conn, told, "s", take_no=1, q=None)


def left(conn: Connection) -> dict[str, set[str]]:
    """The runs that each table has rows of."""
    tables = {
        "run": t.run.c.id,
        **{each.name: each.c.run_id for each in (t.run_text, t.run_event, t.tool_call, t.idem)},
    }
    return {name: set(conn.execute(select(column)).scalars()) for name, column in tables.items()}


def test_only_what_ended_long_ago_and_is_folded_goes_and_all_of_it(
    bases: dict[StoreKind, Make], store_kind: StoreKind
) -> None:
    with bases[store_kind]() as conn:
        put_run(conn, "old", ended_at=100)
        put_run(conn, "young", ended_at=101)
        put_run(conn, "unfolded", ended_at=50, folded=False)
        put_run(conn, "waits", ended_at=None)
        assert not remove_runs(conn, before_ms=100)
        assert all(names == {"young", "unfolded", "waits"} for names in left(conn).values()), left(conn)
        assert next_page(conn, "old", 0) is None and next_page(conn, "young", 3) == []


def test_many_runs_go_in_steps_of_so_many(bases: dict[StoreKind, Make], store_kind: StoreKind) -> None:
    with bases[store_kind]() as conn:
        for number in range(2 * STEP_RUNS + 1):
            put_run(conn, f"{number:03d}", ended_at=9)
        counts = [len(left(conn)["run"])]
        while remove_runs(conn, before_ms=9):
            counts.append(len(left(conn)["run"]))
        assert counts == [2 * STEP_RUNS + 1, STEP_RUNS + 1, 1]
        assert left(conn)["run"] == set()


@pytest.mark.parametrize("events", [STEP_ROWS - 1, STEP_ROWS, STEP_ROWS + 1, 2 * STEP_ROWS + 500])
def test_a_long_run_goes_in_steps_and_can_be_read_until_the_last(
    bases: dict[StoreKind, Make], store_kind: StoreKind, events: int
) -> None:
    with bases[store_kind]() as conn:
        put_run(conn, "long", ended_at=9, events=events)
        kept = [events]
        while remove_runs(conn, before_ms=9):
            first = conn.execute(select(t.run.c.seq_first)).scalar_one()
            page = page_after(conn, "long", first - 1)
            assert page[0].seq == first, "what is left begins where the run says"
            kept.append(conn.execute(select(func.count()).select_from(t.run_event)).scalar_one())
        assert left(conn)["run"] == left(conn)["run_event"] == set()
        assert kept == list(range(events, 0, -STEP_ROWS))


def test_a_step_takes_no_long_run_behind_others(
    bases: dict[StoreKind, Make], store_kind: StoreKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remove, "STEP_ROWS", 10)
    with bases[store_kind]() as conn:
        for name, events in (("1", 6), ("2", 4), ("3", 5), ("4", 11)):
            put_run(conn, name, ended_at=9, events=events)
        seen = [left(conn)["run"]]
        while remove_runs(conn, before_ms=9):
            seen.append(left(conn)["run"])
        assert seen[:3] == [{"1", "2", "3", "4"}, {"3", "4"}, {"4"}] and left(conn)["run"] == set()


def put_ledger(conn: Connection, times: Sequence[int]) -> None:
    row = {
        "kind": "agent_run", "action": "run.start", "status": "started", "actor": "a", "agent": "main",
        "session_key": "k", "session_id": "s", "call_ref": "",
    }  # fmt: skip
    for number, ts in enumerate(times):
        conn.execute(insert(t.audit), {**row, "event_id": f"e{number}", "run_id": f"r{number}", "ts": ts})


def bounded(conn: Connection, **bounds: int) -> list[int]:
    """The times of what is left, and each step within its bound."""
    while True:
        before = conn.execute(select(func.count()).select_from(t.audit)).scalar_one()
        more = bound_audit(conn, **bounds)
        after = conn.execute(select(func.count()).select_from(t.audit)).scalar_one()
        assert before - after <= LEDGER_STEP_ROWS
        if not more:
            return list(conn.execute(select(t.audit.c.ts).order_by(t.audit.c.seq)).scalars())


def test_the_ledger_keeps_no_older_rows(bases: dict[StoreKind, Make], store_kind: StoreKind) -> None:
    """Also when the clock stepped back between them: by the time of each row."""
    with bases[store_kind]() as conn:
        put_ledger(conn, [1, 2, 9, 3, 10, 11])
        assert bounded(conn, before_ms=10, rows_max=100) == [10, 11]


def test_the_ledger_keeps_no_more_rows_the_newest_of_them(bases: dict[StoreKind, Make], store_kind: StoreKind) -> None:
    with bases[store_kind]() as conn:
        put_ledger(conn, range(1_300))
        assert bounded(conn, before_ms=0, rows_max=100) == list(range(1_200, 1_300))
        assert bounded(conn, before_ms=0, rows_max=100) == list(range(1_200, 1_300))


def test_an_empty_ledger_is_within_all_bounds(bases: dict[StoreKind, Make], store_kind: StoreKind) -> None:
    with bases[store_kind]() as conn:
        assert not upkeep.bound_audit(conn, before_ms=10**15, rows_max=100)
