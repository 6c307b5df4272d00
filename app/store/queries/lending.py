"""Reads of the texts that other rows of a run have borrowed from its transcript."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select

from app.domain.borrowing import lenders, part_texts, restore
from app.store import tables as t

_entry = (
    select(t.transcript.c.payload)
    .join(t.run, t.run.c.transcript_id == t.transcript.c.transcript_id)
    .where(t.run.c.id == bindparam("b_run"), t.transcript.c.entry_no == bindparam("b_entry"))
)


class Lending:
    """The entries of one run, each read when it is first needed. Good for one look at the database."""

    def __init__(self, conn: Connection, run_id: str) -> None:
        self._conn = conn
        self._run_id = run_id
        self._texts: dict[int, list[str]] = {}

    def entry(self, entry_no: int) -> dict[int, list[str]]:
        """The texts of one entry, by its number."""
        if entry_no not in self._texts:
            found = self._conn.execute(_entry, {"b_run": self._run_id, "b_entry": entry_no}).scalar_one()
            self._texts[entry_no] = part_texts(found)
        return {entry_no: self._texts[entry_no]}

    def restored(self, document: str) -> str:
        """A document that borrows, as it was."""
        texts: dict[int, list[str]] = {}
        for entry_no in lenders(document):
            texts |= self.entry(entry_no)
        return restore(document, texts)
