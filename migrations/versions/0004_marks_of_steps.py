"""marks of steps"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "step_mark",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("marked_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    # Where several processes write, the row of a lane stands for its free places: whoever counts them locks it.
    op.execute("DELETE FROM slot")
    op.execute("INSERT INTO slot (lane, n) VALUES ('', 0)")


def downgrade() -> None:
    op.execute("DELETE FROM slot")
    op.drop_table("step_mark")
