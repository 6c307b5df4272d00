"""How Alembic reaches the database. Batch mode, and foreign keys off while SQLite rebuilds tables."""

from __future__ import annotations

from alembic import context
from sqlalchemy import create_engine, pool

from app.store.tables import metadata


def run() -> None:
    url = context.config.get_main_option("sqlalchemy.url")
    assert url is not None
    engine = create_engine(url, poolclass=pool.NullPool)
    with engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            connection.commit()
        context.configure(
            connection=connection,
            target_metadata=metadata,
            render_as_batch=True,
            transactional_ddl=True,
            compare_type=True,
        )
        with context.begin_transaction():
            context.run_migrations()


run()
