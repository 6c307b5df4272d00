"""tool calls in the ledger"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("tool_call", schema=None) as batch_op:
        batch_op.add_column(sa.Column("call_ref", sa.String(), nullable=False, server_default=""))
        batch_op.add_column(sa.Column("tool_name", sa.String(), nullable=True))
    with op.batch_alter_table("tool_call", schema=None) as batch_op:
        batch_op.alter_column("call_ref", existing_type=sa.String(), existing_nullable=False, server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("tool_call", schema=None) as batch_op:
        batch_op.drop_column("tool_name")
        batch_op.drop_column("call_ref")
