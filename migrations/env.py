"""How Alembic reaches the database. Batch mode, and foreign keys off while SQLite rebuilds tables."""

from __future__ import annotations

import contextlib

from alembic import context
from sqlalchemy import create_engine, make_url, pool

from app.store.tables import metadata


def run() -> None:
    """Migrate over a connection, given or our own, or print the SQL for the dialect of the URL."""
    url = context.config.get_main_option("sqlalchemy.url")
    assert url is not None
    if context.is_offline_mode():
        dialect = make_url(url).get_backend_name()
        context.configure(dialect_name=dialect, target_metadata=metadata, literal_binds=True)
        with context.begin_transaction():
            context.run_migrations()
        return
    given = context.config.attributes.get("connection")
    engine = create_engine(url, poolclass=pool.NullPool) if given is None else None
    with contextlib.nullcontext(given) if engine is None else engine.connect() as connection:
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
