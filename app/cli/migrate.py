"""`laneway migrate`: bring the database up to this version."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from app.cli.logs import configure_logging
from app.settings import EMBEDDED, Settings, load
from app.store.files import StateLock, database_path, prepare_state_dir
from app.store.migrate import migrate_sqlite, revisions


def bring_up(settings: Settings, *, migrate: bool) -> list[str]:
    """The configured database at this version; returns the revisions applied. Raises StoreUnusable."""
    if settings.store.url == EMBEDDED:
        return migrate_sqlite(database_path(settings.state_dir))
    from app.store.postgres_begin import open_database

    return open_database(settings.store.url, migrate=migrate)


def migrate(
    config: Annotated[Path | None, typer.Option(help="The laneway.toml to read.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where everything durable lives.")] = None,
) -> None:
    """Bring the database up to this version. `laneway serve` does it for SQLite, and with --migrate for PostgreSQL."""
    configure_logging()
    settings = load(config, os.environ, {"state_dir": state_dir}).settings
    prepare_state_dir(settings.state_dir)
    lock = StateLock(settings.state_dir)
    lock.acquire()
    try:
        applied = bring_up(settings, migrate=True)
    finally:
        lock.release()
    head = revisions()[-1]
    print(f"Migrated to {head}: {', '.join(applied)}" if applied else f"Already at {head}")
