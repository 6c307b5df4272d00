"""runs to fold"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

UNFOLDED = sa.text("folded_at IS NULL AND ended_at IS NOT NULL")


def upgrade() -> None:
    with op.batch_alter_table("run", schema=None) as batch_op:
        batch_op.create_index(
            "ix_run_unfolded", ["ended_at"], unique=False, sqlite_where=UNFOLDED, postgresql_where=UNFOLDED
        )


def downgrade() -> None:
    with op.batch_alter_table("run", schema=None) as batch_op:
        batch_op.drop_index("ix_run_unfolded")
