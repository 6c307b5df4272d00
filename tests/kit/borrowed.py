"""Rows as they were before their texts were kept in the transcript alone, read back without the service's own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

Row = dict[str, Any]
Rows = Callable[..., list[Row]]


class Whole:
    """Reads what rows borrow, from one snapshot."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def row(self, row: Row, *columns: str) -> Row:
        """The row with whole texts in some columns."""
        if not row["borrows"]:
            return row
        found = {name: None if row[name] is None else self._document(row["run_id"], row[name]) for name in columns}
        return {**row, **found}

    def _document(self, run_id: str, document: str) -> str:
        def whole(value: Any) -> Any:
            if isinstance(value, list):
                return [whole(one) for one in value]
            if not isinstance(value, dict):
                return value
            if "$entry" not in value:
                return {name: whole(one) for name, one in value.items()}
            return self._text(run_id, *value["$entry"])

        return orjson.dumps(whole(orjson.loads(document))).decode()

    def _text(self, run_id: str, entry_no: int, part: int, first: int, length: int) -> str:
        query = """
            SELECT transcript.payload, transcript.run_id FROM transcript
            JOIN run ON run.transcript_id = transcript.transcript_id WHERE run.id = ? AND transcript.entry_no = ?
        """
        (entry,) = self._rows(query, run_id, entry_no)
        assert entry["run_id"] == run_id, f"{run_id} borrows from an entry of {entry['run_id']}"
        kept = orjson.loads(entry["payload"])["parts"][part]
        text: str = kept.get("text", kept.get("content"))
        assert len(text) >= first + length, f"{run_id} borrows more than entry {entry_no} has"
        return text[first : first + length]
