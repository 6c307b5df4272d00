"""`laneway migrate`: bring the database up to this version."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from app.settings import load
from app.store.files import StateLock, database_path, prepare_state_dir
from app.store.migrate import migrate_sqlite, revisions


def migrate(
    config: Annotated[Path | None, typer.Option(help="The laneway.toml to read.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where everything durable lives.")] = None,
) -> None:
    """Bring the database up to this version. `laneway serve` does the same at its start."""
    settings = load(config, os.environ, {"state_dir": state_dir}, secrets=False).settings
    prepare_state_dir(settings.state_dir)
    lock = StateLock(settings.state_dir)
    lock.acquire()
    try:
        applied = migrate_sqlite(database_path(settings.state_dir))
    finally:
        lock.release()
    head = revisions()[-1]
    print(f"Migrated to {head}: {', '.join(applied)}" if applied else f"Already at {head}")
