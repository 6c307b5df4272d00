"""The tables, as SQLModel classes, and their Core tables for the hot path.

Payloads, arguments and results are text, never JSONB (it refuses NUL escapes, reorders keys and rewrites
numbers). Times are milliseconds since the epoch. Order is by the numbers given out under a lock, never by a time.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Boolean, Column, DateTime, Index, Integer, Table, Text, UniqueConstraint, false, text
from sqlmodel import Field, SQLModel

_OPEN_LANES = "waiting_at IS NOT NULL"
_RUNNING = "status = 'running'"
_UNFINISHED = "status IN ('queued', 'running', 'recovering')"
_TERMINAL = "terminal = 1"
_UNFOLDED = "folded_at IS NULL AND ended_at IS NOT NULL"

_COUNTER = BigInteger().with_variant(Integer(), "sqlite")


def _big(*, default: int | None = None, nullable: bool = False) -> Any:
    return Field(default=default, sa_column=Column(BigInteger, nullable=nullable))


def _text(*, nullable: bool = False) -> Any:
    return Field(default=None if nullable else "", sa_column=Column(Text, nullable=nullable))


def _borrows() -> Any:
    """Whether texts in the row are kept in the transcript alone (`app.domain.borrowing`)."""
    return Field(default=False, sa_column=Column(Boolean, nullable=False, server_default=false()))


class Worker(SQLModel, table=True):
    """One incarnation of a process that executes; it holds the only lease. A dead id never lives again."""

    id: str = Field(primary_key=True)
    host: str
    pid: int
    boot_id: str
    started_at: int = _big()
    lease_until: int = _big()
    dead_at: int | None = _big(nullable=True)


class Session(SQLModel, table=True):
    """A conversation. Its row lock orders everything of the session."""

    id: str = Field(primary_key=True)
    key: str = Field(unique=True)
    agent: str
    principal: str
    transcript_id: str = Field(unique=True)
    lane: str
    lane_gen: int
    lane_owner: str | None = None
    woken_at: int | None = _big(nullable=True)
    next_accept: int
    next_entry: int
    takes: int
    queue_seq: int
    writer_run: str | None = None
    writer_attempt: int | None = None
    waits_for: str | None = None
    waiting_at: int | None = _big(nullable=True)
    created_at: int = _big()
    updated_at: int = _big()
    last_input_at: int = _big()

    __table_args__ = (
        Index("ix_session_lane", "lane"),
        Index("ix_session_updated", "updated_at", "id"),
        Index(
            "ix_session_waiting",
            "waits_for",
            "waiting_at",
            "id",
            sqlite_where=text(_OPEN_LANES),
            postgresql_where=text(_OPEN_LANES),
        ),
    )


class Run(SQLModel, table=True):
    """One accepted input and where it stands. Rewritten often, so large texts stand in `run_text`."""

    id: str = Field(primary_key=True)
    session_id: str = Field(foreign_key="session.id")
    accept_no: int
    principal: str
    agent: str
    mode: str
    kind: str
    prio: int
    runnable_at: int = _big()
    lane_name: str
    status: str
    attempt: int
    stalled: int
    take_no: int | None = None
    seq_first: int
    seq_last: int
    seq_high: int
    open_message: str | None = None
    abort_at: int | None = _big(nullable=True)
    abort_code: str | None = None
    abort_reason: str | None = None
    active_ms: int = _big()
    merged_into: str | None = None
    outcome: str | None = None
    stop_reason: str | None = None
    folded_at: int | None = _big(nullable=True)
    transcript_id: str
    model: str
    label: str | None = None
    accepted_at: int = _big()
    started_at: int | None = _big(nullable=True)
    ended_at: int | None = _big(nullable=True)

    __table_args__ = (
        UniqueConstraint("session_id", "accept_no", name="uq_run_accept_no"),
        Index(
            "uq_run_running",
            "session_id",
            unique=True,
            sqlite_where=text(_RUNNING),
            postgresql_where=text(_RUNNING),
        ),
        Index(
            "ix_run_open",
            "session_id",
            "prio",
            "accept_no",
            sqlite_where=text(_UNFINISHED),
            postgresql_where=text(_UNFINISHED),
        ),
        Index(
            "ix_run_running_lane",
            "lane_name",
            "stalled",
            sqlite_where=text(_RUNNING),
            postgresql_where=text(_RUNNING),
        ),
        Index("ix_run_unfolded", "ended_at", sqlite_where=text(_UNFOLDED), postgresql_where=text(_UNFOLDED)),
        Index("ix_run_accepted", "accepted_at", "id"),
        Index("ix_run_session_accepted", "session_id", "accepted_at", "id"),
    )


class RunText(SQLModel, table=True):
    """The large texts of a run: its input, its reply and usage, its error. JSON."""

    __tablename__: ClassVar[Any] = "run_text"

    run_id: str = Field(primary_key=True, foreign_key="run.id")
    input: str = _text()
    reply: str | None = _text(nullable=True)
    error: str | None = _text(nullable=True)
    borrows: bool = _borrows()


class RunEvent(SQLModel, table=True):
    """An event as it was told. A folded row stands under its last number; `cuts` has the length of each it covers."""

    __tablename__: ClassVar[Any] = "run_event"

    run_id: str = Field(primary_key=True)
    seq: int = Field(primary_key=True)
    first_seq: int
    not_kept_from: int | None = None
    session_id: str
    take_no: int | None = None
    q: int | None = None
    stream: str
    terminal: int
    ts: int = _big()
    payload: str = _text()
    cuts: str | None = _text(nullable=True)
    borrows: bool = _borrows()

    __table_args__ = (
        Index(
            "uq_run_event_terminal",
            "run_id",
            unique=True,
            sqlite_where=text(_TERMINAL),
            postgresql_where=text(_TERMINAL),
        ),
        Index("ix_run_event_take", "session_id", "take_no", "seq"),
        Index(
            "ix_run_event_q",
            "session_id",
            "q",
            sqlite_where=text("q IS NOT NULL"),
            postgresql_where=text("q IS NOT NULL"),
        ),
        {"sqlite_with_rowid": False},
    )


class ToolCall(SQLModel, table=True):
    """A call of one assistant entry. `result` is durable here before it is in the transcript.

    `name` and `call_id` are the model's; `tool_name` is set when there is such a tool, and `call_ref` is how the
    ledger names the call.
    """

    __tablename__: ClassVar[Any] = "tool_call"

    id: str = Field(primary_key=True)
    run_id: str = Field(foreign_key="run.id")
    entry_no: int
    ordinal: int
    attempt: int
    state: str
    kind: str
    name: str
    call_id: str
    call_ref: str
    tool_name: str | None = None
    args: str = _text()
    result: str | None = _text(nullable=True)
    group_id: str | None = None
    approval_id: str | None = None
    borrows: bool = _borrows()

    __table_args__ = (UniqueConstraint("run_id", "entry_no", "ordinal", name="uq_tool_call_place"),)


class Transcript(SQLModel, table=True):
    """One entry of a conversation: append only, one row a message."""

    transcript_id: str = Field(primary_key=True)
    entry_no: int = Field(primary_key=True)
    entry_id: str = Field(unique=True)
    run_id: str | None = None
    attempt: int | None = None
    kind: str
    role: str
    message_id: str
    payload: str = _text()
    aborted: bool
    created_at: int = _big()

    __table_args__ = (Index("ix_transcript_run", "run_id", "entry_no"),)


class Slot(SQLModel, table=True):
    """One row, `('', 0)`: whoever counts or gives out places of lanes locks it, where several connections write."""

    lane: str = Field(primary_key=True)
    n: int = Field(primary_key=True)
    run_id: str | None = None


class StepMark(SQLModel, table=True):
    """The last step of each connection that writes, where the answer to a COMMIT can be lost on its way."""

    __tablename__: ClassVar[Any] = "step_mark"

    id: str = Field(primary_key=True)
    token: str
    marked_at: datetime = Field(sa_column=Column(DateTime(timezone=True), nullable=False))


class Audit(SQLModel, table=True):
    """The metadata-only ledger. No column can hold content; `code` is from a closed list."""

    seq: int | None = Field(default=None, sa_column=Column(_COUNTER, primary_key=True, autoincrement=True))
    event_id: str = Field(unique=True)
    ts: int = _big()
    kind: str
    action: str
    status: str
    code: str | None = None
    actor: str
    agent: str
    session_key: str
    session_id: str
    run_id: str
    tool_name: str | None = None
    call_ref: str
    direction: str | None = None
    channel: str | None = None
    duration_ms: int | None = _big(nullable=True)

    __table_args__ = (
        UniqueConstraint("run_id", "call_ref", "action", name="uq_audit_once"),
        Index("ix_audit_ts", "ts"),
        Index("ix_audit_session", "session_key", "seq"),
        {"sqlite_autoincrement": True},
    )


class Idem(SQLModel, table=True):
    """An idempotency key and the answer it stands for, written in the transaction of what it protects."""

    principal: str = Field(primary_key=True)
    route: str = Field(primary_key=True)
    key: str = Field(primary_key=True)
    body_hash: str
    run_id: str | None = Field(default=None, index=True)
    answer: str = _text()
    created_at: int = _big()


def _table(model: type[SQLModel]) -> Table:
    return model.__table__  # type: ignore[attr-defined,no-any-return]


metadata = SQLModel.metadata
worker = _table(Worker)
session = _table(Session)
run = _table(Run)
run_text = _table(RunText)
run_event = _table(RunEvent)
tool_call = _table(ToolCall)
transcript = _table(Transcript)
slot = _table(Slot)
audit = _table(Audit)
idem = _table(Idem)
