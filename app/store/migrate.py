"""Bringing a SQLite file to the schema of this code: Alembic's tree under `migrations/`, and a quick look before it."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from alembic import command
from alembic.config import Config

from app.errors import StoreUnusable

SCRIPTS = Path(__file__).resolve().parents[2] / "migrations"


def revisions() -> list[str]:
    """Every revision of the tree, oldest first; a file's number is its revision."""
    names = (re.match(r"(\d{4})_", path.name) for path in (SCRIPTS / "versions").glob("*.py"))
    return sorted(match.group(1) for match in names if match is not None)


def sqlite_revision(path: Path) -> str | None:
    """The revision a SQLite file is at; None for a new one. Raises StoreUnusable in one clear line."""
    if not path.exists():
        return None
    try:
        raw = sqlite3.connect(path, timeout=2.0)
        try:
            raw.execute("PRAGMA schema_version").fetchone()
            found = raw.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
            row = raw.execute("SELECT version_num FROM alembic_version").fetchone() if found else None
            _check_readable(raw)
            _check_writable(raw)
        finally:
            raw.close()
    except sqlite3.Error as problem:
        raise unusable(path, problem) from None
    return None if row is None else str(row[0])


def _check_readable(raw: sqlite3.Connection) -> None:
    """A look into every table, so that damage at its root is found before anything is written."""
    names = raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (name,) in names:
        raw.execute(f'SELECT * FROM "{name}" LIMIT 1').fetchone()  # noqa: S608 - a name of the database's own


def _check_writable(raw: sqlite3.Connection) -> None:
    """Really write: what is rolled back never meets a full disk."""
    raw.isolation_level = None
    raw.execute("BEGIN IMMEDIATE")
    raw.execute("CREATE TABLE laneway_write_check (x)")
    raw.execute("DROP TABLE laneway_write_check")
    raw.execute("COMMIT")


def unusable(path: Path, problem: Exception) -> StoreUnusable:
    """The one line for the operator about a database that does not work."""
    text = str(problem)
    if "readonly" in text or "read-only" in text:
        why = "is read-only; give the service's user the right to write it and its folder"
    elif "locked" in text or "busy" in text:
        why = "is locked by another process; stop that process first"
    elif "full" in text:
        why = "cannot be written: the disk is full"
    elif "malformed" in text or "not a database" in text or "encrypted" in text:
        why = "is corrupt or no SQLite database; restore a backup, or move it away to begin anew"
    elif "unable to open" in text:
        why = "cannot be opened; check the folder and its rights"
    else:
        why = f"cannot be used: {text}"
    return StoreUnusable(f"The database {path} {why}.")


def missing_revisions(at: str | None, name: str) -> list[str]:
    """What a database lacks that is at a revision. Raises StoreUnusable for one newer than the code."""
    known = revisions()
    if at is not None and at not in known:
        raise StoreUnusable(
            f"The database {name} is at revision {at}, newer than this code ({known[-1]}); run the newer version."
        )
    return known if at is None else known[known.index(at) + 1 :]


def migrate_sqlite(path: Path) -> list[str]:
    """Bring a SQLite file up; returns the revisions applied. Raises StoreUnusable, also for one newer than the code."""
    missing = missing_revisions(sqlite_revision(path), str(path))
    if missing:
        try:
            command.upgrade(alembic_config(f"sqlite:///{path}"), "head")
        except sqlite3.Error as problem:
            raise unusable(path, problem) from None
        except Exception as problem:
            raise unusable(path, getattr(problem, "orig", None) or problem) from None
    return missing


def alembic_config(url: str) -> Config:
    """Alembic's configuration for a database, without a file."""
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config
