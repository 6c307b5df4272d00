"""first tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("ts", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("code", sa.String(), nullable=True),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("session_key", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("tool_name", sa.String(), nullable=True),
        sa.Column("call_ref", sa.String(), nullable=False),
        sa.Column("direction", sa.String(), nullable=True),
        sa.Column("channel", sa.String(), nullable=True),
        sa.Column("duration_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("event_id"),
        sa.UniqueConstraint("run_id", "call_ref", "action", name="uq_audit_once"),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.create_index("ix_audit_session", ["session_key", "seq"], unique=False)
        batch_op.create_index("ix_audit_ts", ["ts"], unique=False)

    op.create_table(
        "idem",
        sa.Column("principal", sa.String(), nullable=False),
        sa.Column("route", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("body_hash", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("principal", "route", "key"),
    )
    with op.batch_alter_table("idem", schema=None) as batch_op:
        batch_op.create_index("ix_idem_run_id", ["run_id"], unique=False)

    op.create_table(
        "run_event",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("first_seq", sa.Integer(), nullable=False),
        sa.Column("not_kept_from", sa.Integer(), nullable=True),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("take_no", sa.Integer(), nullable=True),
        sa.Column("q", sa.Integer(), nullable=True),
        sa.Column("stream", sa.String(), nullable=False),
        sa.Column("terminal", sa.Integer(), nullable=False),
        sa.Column("ts", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("cuts", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "seq"),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("run_event", schema=None) as batch_op:
        batch_op.create_index(
            "ix_run_event_q",
            ["session_id", "q"],
            unique=False,
            sqlite_where=sa.text("q IS NOT NULL"),
            postgresql_where=sa.text("q IS NOT NULL"),
        )
        batch_op.create_index("ix_run_event_take", ["session_id", "take_no", "seq"], unique=False)
        batch_op.create_index(
            "uq_run_event_terminal",
            ["run_id"],
            unique=True,
            sqlite_where=sa.text("terminal = 1"),
            postgresql_where=sa.text("terminal = 1"),
        )

    op.create_table(
        "session",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("principal", sa.String(), nullable=False),
        sa.Column("transcript_id", sa.String(), nullable=False),
        sa.Column("lane", sa.String(), nullable=False),
        sa.Column("lane_gen", sa.Integer(), nullable=False),
        sa.Column("lane_owner", sa.String(), nullable=True),
        sa.Column("woken_at", sa.BigInteger(), nullable=True),
        sa.Column("next_accept", sa.Integer(), nullable=False),
        sa.Column("next_entry", sa.Integer(), nullable=False),
        sa.Column("takes", sa.Integer(), nullable=False),
        sa.Column("queue_seq", sa.Integer(), nullable=False),
        sa.Column("writer_run", sa.String(), nullable=True),
        sa.Column("writer_attempt", sa.Integer(), nullable=True),
        sa.Column("waits_for", sa.String(), nullable=True),
        sa.Column("waiting_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("last_input_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key"),
        sa.UniqueConstraint("transcript_id"),
    )
    with op.batch_alter_table("session", schema=None) as batch_op:
        batch_op.create_index("ix_session_lane", ["lane"], unique=False)
        batch_op.create_index("ix_session_updated", ["updated_at", "id"], unique=False)
        batch_op.create_index(
            "ix_session_waiting",
            ["waits_for", "waiting_at", "id"],
            unique=False,
            sqlite_where=sa.text("waiting_at IS NOT NULL"),
            postgresql_where=sa.text("waiting_at IS NOT NULL"),
        )

    op.create_table(
        "slot",
        sa.Column("lane", sa.String(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("lane", "n"),
    )
    op.create_table(
        "transcript",
        sa.Column("transcript_id", sa.String(), nullable=False),
        sa.Column("entry_no", sa.Integer(), nullable=False),
        sa.Column("entry_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("message_id", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("aborted", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("transcript_id", "entry_no"),
        sa.UniqueConstraint("entry_id"),
        sqlite_with_rowid=False,
    )
    with op.batch_alter_table("transcript", schema=None) as batch_op:
        batch_op.create_index("ix_transcript_run", ["run_id", "entry_no"], unique=False)

    op.create_table(
        "worker",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("boot_id", sa.String(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.Column("dead_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "run",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("accept_no", sa.Integer(), nullable=False),
        sa.Column("principal", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("prio", sa.Integer(), nullable=False),
        sa.Column("runnable_at", sa.BigInteger(), nullable=False),
        sa.Column("lane_name", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("stalled", sa.Integer(), nullable=False),
        sa.Column("take_no", sa.Integer(), nullable=True),
        sa.Column("seq_first", sa.Integer(), nullable=False),
        sa.Column("seq_last", sa.Integer(), nullable=False),
        sa.Column("seq_high", sa.Integer(), nullable=False),
        sa.Column("open_message", sa.String(), nullable=True),
        sa.Column("abort_at", sa.BigInteger(), nullable=True),
        sa.Column("abort_code", sa.String(), nullable=True),
        sa.Column("abort_reason", sa.String(), nullable=True),
        sa.Column("active_ms", sa.BigInteger(), nullable=False),
        sa.Column("merged_into", sa.String(), nullable=True),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("stop_reason", sa.String(), nullable=True),
        sa.Column("folded_at", sa.BigInteger(), nullable=True),
        sa.Column("transcript_id", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=True),
        sa.Column("accepted_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["session.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("session_id", "accept_no", name="uq_run_accept_no"),
    )
    with op.batch_alter_table("run", schema=None) as batch_op:
        batch_op.create_index("ix_run_accepted", ["accepted_at", "id"], unique=False)
        batch_op.create_index(
            "ix_run_open",
            ["session_id", "prio", "accept_no"],
            unique=False,
            sqlite_where=sa.text("status IN ('queued', 'running', 'recovering')"),
            postgresql_where=sa.text("status IN ('queued', 'running', 'recovering')"),
        )
        batch_op.create_index(
            "ix_run_running_lane",
            ["lane_name", "stalled"],
            unique=False,
            sqlite_where=sa.text("status = 'running'"),
            postgresql_where=sa.text("status = 'running'"),
        )
        batch_op.create_index("ix_run_session_accepted", ["session_id", "accepted_at", "id"], unique=False)
        batch_op.create_index(
            "uq_run_running",
            ["session_id"],
            unique=True,
            sqlite_where=sa.text("status = 'running'"),
            postgresql_where=sa.text("status = 'running'"),
        )

    op.create_table(
        "run_text",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("input", sa.Text(), nullable=False),
        sa.Column("reply", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"],
            ["run.id"],
        ),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_table(
        "tool_call",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("entry_no", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("call_id", sa.String(), nullable=False),
        sa.Column("args", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("group_id", sa.String(), nullable=True),
        sa.Column("approval_id", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"],
            ["run.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run_id", "entry_no", "ordinal", name="uq_tool_call_place"),
    )


def downgrade() -> None:
    op.drop_table("tool_call")
    op.drop_table("run_text")
    with op.batch_alter_table("run", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_run_running", sqlite_where=sa.text("status = 'running'"), postgresql_where=sa.text("status = 'running'")
        )
        batch_op.drop_index("ix_run_session_accepted")
        batch_op.drop_index(
            "ix_run_running_lane",
            sqlite_where=sa.text("status = 'running'"),
            postgresql_where=sa.text("status = 'running'"),
        )
        batch_op.drop_index(
            "ix_run_open",
            sqlite_where=sa.text("status IN ('queued', 'running', 'recovering')"),
            postgresql_where=sa.text("status IN ('queued', 'running', 'recovering')"),
        )
        batch_op.drop_index("ix_run_accepted")

    op.drop_table("run")
    op.drop_table("worker")
    with op.batch_alter_table("transcript", schema=None) as batch_op:
        batch_op.drop_index("ix_transcript_run")

    op.drop_table("transcript")
    op.drop_table("slot")
    with op.batch_alter_table("session", schema=None) as batch_op:
        batch_op.drop_index(
            "ix_session_waiting",
            sqlite_where=sa.text("waiting_at IS NOT NULL"),
            postgresql_where=sa.text("waiting_at IS NOT NULL"),
        )
        batch_op.drop_index("ix_session_updated")
        batch_op.drop_index("ix_session_lane")

    op.drop_table("session")
    with op.batch_alter_table("run_event", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_run_event_terminal", sqlite_where=sa.text("terminal = 1"), postgresql_where=sa.text("terminal = 1")
        )
        batch_op.drop_index("ix_run_event_take")
        batch_op.drop_index(
            "ix_run_event_q", sqlite_where=sa.text("q IS NOT NULL"), postgresql_where=sa.text("q IS NOT NULL")
        )

    op.drop_table("run_event")
    with op.batch_alter_table("idem", schema=None) as batch_op:
        batch_op.drop_index("ix_idem_run_id")

    op.drop_table("idem")
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.drop_index("ix_audit_ts")
        batch_op.drop_index("ix_audit_session")

    op.drop_table("audit")
