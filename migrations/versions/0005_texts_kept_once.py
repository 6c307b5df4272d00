"""texts kept once"""

from __future__ import annotations

from typing import Any

import orjson
import sqlalchemy as sa
from alembic import context, op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BORROWERS = {
    "run_event": (("run_id", "seq"), ("payload",)),
    "run_text": (("run_id",), ("input", "reply")),
    "tool_call": (("id",), ("result",)),
}
"""Tables whose rows borrow texts of the transcript: their key, and the columns that do."""

ROWS = 500
GUARD = (
    "DO $$ BEGIN IF EXISTS (SELECT 1 FROM {table} WHERE borrows) THEN "
    "RAISE EXCEPTION 'rows of {table} have to get their texts back: run the migration over a connection'; "
    "END IF; END $$"
)


def upgrade() -> None:
    for table in BORROWERS:
        with op.batch_alter_table(table, schema=None) as batch_op:
            batch_op.add_column(sa.Column("borrows", sa.Boolean(), nullable=False, server_default=sa.false()))
    # In a table without row ids, a row of more than a quarter of a page takes a page of its own.
    if op.get_context().dialect.name == "sqlite":
        _remake_transcript(with_rowid=True)


def downgrade() -> None:
    for table in BORROWERS:
        if context.is_offline_mode():
            op.execute(GUARD.format(table=table))
        else:
            _give_back(table)
        op.execute(f"ALTER TABLE {table} DROP COLUMN borrows")
    if op.get_context().dialect.name == "sqlite":
        _remake_transcript(with_rowid=False)


def _remake_transcript(*, with_rowid: bool) -> None:
    kind = {"sqlite_with_rowid": with_rowid}
    with op.batch_alter_table("transcript", schema=None, recreate="always", table_kwargs=kind):
        pass


def _give_back(table: str) -> None:
    """Every row gets its texts back, some at a time."""
    bind = op.get_bind()
    key, columns = BORROWERS[table]
    named = ", ".join(dict.fromkeys(("run_id", *key, *columns)))
    some = sa.text(f"SELECT {named} FROM {table} WHERE borrows LIMIT {ROWS}")  # noqa: S608 - names of this file
    put = sa.text(
        f"UPDATE {table} SET {', '.join(f'{name} = :{name}' for name in columns)}, borrows = :no "  # noqa: S608
        f"WHERE {' AND '.join(f'{name} = :{name}' for name in key)}"
    )
    while rows := bind.execute(some).mappings().all():
        for row in rows:
            whole = {name: _restored(bind, row["run_id"], row[name]) for name in columns}
            bind.execute(put, {**{name: row[name] for name in key}, **whole, "no": False})


_ENTRY = sa.text(
    "SELECT transcript.payload FROM transcript JOIN run ON run.transcript_id = transcript.transcript_id "
    "WHERE run.id = :run AND transcript.entry_no = :entry"
)


def _restored(bind: sa.Connection, run_id: str, document: str | None) -> str | None:
    if document is None:
        return None

    def whole(value: Any) -> Any:
        if isinstance(value, list):
            return [whole(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "$entry" not in value:
            return {name: whole(one) for name, one in value.items()}
        entry_no, part, first, length = value["$entry"]
        entry = orjson.loads(bind.execute(_ENTRY, {"run": run_id, "entry": entry_no}).scalar_one())["parts"][part]
        return entry.get("text", entry.get("content", ""))[first : first + length]

    return orjson.dumps(whole(orjson.loads(document))).decode()
