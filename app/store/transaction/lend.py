"""Part of T14: what stands in the transcript goes from the other rows of an ended run, which borrow it from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import orjson
from sqlalchemy import Connection, Row, bindparam, exists, func, or_, select, update

from app.domain.borrowing import CHARS_MIN, ENTRY_CHARS_MAX, borrow, is_long
from app.faults import Point, hit
from app.store import tables as t
from app.store.queries.lending import Lending

STEP_CHARS = 128 * 1024
"""A step ends after rows of so many characters, so that nothing else waits long behind it."""

ROW_CHARS_MIN = 2 * CHARS_MIN
"""Shorter rows of inputs, replies and results are left as they are: half of one is what stands around the text."""

_entries = (
    select(t.transcript.c.message_id, t.transcript.c.entry_no, t.transcript.c.role)
    .join(t.run, t.run.c.transcript_id == t.transcript.c.transcript_id)
    .where(t.run.c.id == bindparam("b_run"), t.transcript.c.run_id == bindparam("b_run"))
    .order_by(t.transcript.c.entry_no)
)
_lend_event = (
    update(t.run_event)
    .where(t.run_event.c.run_id == bindparam("b_run"), t.run_event.c.seq == bindparam("b_seq"))
    .values(payload=bindparam("b_payload"), borrows=True)
)
_long_text = (
    t.run_text.c.run_id == bindparam("b_run"),
    t.run_text.c.borrows.is_(False),
    or_(func.length(t.run_text.c.input) > ROW_CHARS_MIN, func.length(t.run_text.c.reply) > ROW_CHARS_MIN),
)
_long_result = (
    t.tool_call.c.run_id == bindparam("b_run"),
    t.tool_call.c.borrows.is_(False),
    func.length(t.tool_call.c.result) > ROW_CHARS_MIN,
)
_is_there = select(exists().where(*_long_text).label("text"), exists().where(*_long_result).label("results"))
_text = select(t.run_text.c.input, t.run_text.c.reply).where(t.run_text.c.run_id == bindparam("b_run"))
_lend_text = (
    update(t.run_text)
    .where(t.run_text.c.run_id == bindparam("b_run"))
    .values(input=bindparam("b_input"), reply=bindparam("b_reply"), borrows=True)
)
_results = select(t.tool_call.c.id).where(*_long_result)
_result = select(t.tool_call.c.result).where(t.tool_call.c.id == bindparam("b_id"))
_lend_result = (
    update(t.tool_call).where(t.tool_call.c.id == bindparam("b_id")).values(result=bindparam("b_result"), borrows=True)
)


class Lender:
    """Rewrites rows of one run in one step; reads of the transcript what it needs for that, and once."""

    def __init__(self, conn: Connection, run_id: str) -> None:
        self._conn = conn
        self._run_id = run_id
        self._lending = Lending(conn, run_id)
        self._too_long: set[int] = set()

    def lent(self, payload: str) -> str | None:
        """The payload of an event with its texts borrowed; None when it has none that stand in the transcript."""
        data = orjson.loads(payload)
        if not is_long(data):
            return None
        told = data.get("resultMessageId") or data.get("messageId") or data.get("input", {}).get("messageId")
        return None if told is None else self._lent(payload, told)

    def lend_events(self, rows: Iterable[Any]) -> int | None:
        """Of rows of `run_event`. Returns the number after which to go on, None when all were looked at."""
        chars = 0
        for row in rows:
            lent = None if row["borrows"] else self.lent(row["payload"])
            if lent is None:
                continue
            self._conn.execute(_lend_event, {"b_run": self._run_id, "b_seq": row["seq"], "b_payload": lent})
            hit(Point.FOLDING)
            chars += len(row["payload"])
            if chars >= STEP_CHARS:
                return int(row["seq"])
        return None

    def lend_texts(self) -> bool:
        """Of the run's own texts and the results of its calls. False when there is more to do."""
        there = self._conn.execute(_is_there, {"b_run": self._run_id}).one()
        if there.text:
            self._lend_own()
        return not there.results or self._lend_results()

    def _lend_own(self) -> None:
        row = self._conn.execute(_text, {"b_run": self._run_id}).one()
        asked = self._lent_input(row.input)
        last = self._last_answer
        reply = None if row.reply is None or last is None else self._lent(row.reply, last)
        if asked is not None or reply is not None:
            texts = {"b_input": asked or row.input, "b_reply": reply or row.reply}
            self._conn.execute(_lend_text, {"b_run": self._run_id, **texts})
            hit(Point.FOLDING)

    def _lent_input(self, document: str) -> str | None:
        told = orjson.loads(document)
        lent = self._lent(document, told["messageId"])
        # Metadata is read for each list of runs, without the transcript.
        return lent if lent is not None and orjson.loads(lent)["metadata"] == told["metadata"] else None

    def _lend_results(self) -> bool:
        chars = 0
        for call_id in self._conn.execute(_results, {"b_run": self._run_id}).scalars().all():
            result = self._conn.execute(_result, {"b_id": call_id}).scalar_one()
            lent = self._lent(result, orjson.loads(result)["messageId"])
            if lent is None:
                continue
            self._conn.execute(_lend_result, {"b_id": call_id, "b_result": lent})
            hit(Point.FOLDING)
            chars += len(result)
            if chars >= STEP_CHARS:
                return False
        return True

    def _lent(self, document: str, message_id: str) -> str | None:
        entry_no = self._entry_nos.get(message_id)
        if entry_no is None or entry_no in self._too_long:
            return None
        texts = self._lending.entry(entry_no)
        if sum(len(text) for text in texts[entry_no]) > ENTRY_CHARS_MAX:
            self._too_long.add(entry_no)
            return None
        return borrow(document, texts)

    @cached_property
    def _rows(self) -> Sequence[Row[str, int, str]]:
        return self._conn.execute(_entries, {"b_run": self._run_id}).all()

    @cached_property
    def _entry_nos(self) -> dict[str, int]:
        return {row.message_id: row.entry_no for row in self._rows}

    @cached_property
    def _last_answer(self) -> str | None:
        """The message whose texts the reply has."""
        return next((row.message_id for row in reversed(self._rows) if row.role == "assistant"), None)
