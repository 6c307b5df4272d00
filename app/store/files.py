"""The state directory: where the database lies, and the lock that proves that one process serves it."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Any

import orjson
from filelock import FileLock, Timeout

from app.errors import StartError, StateDirBusy


def database_path(state_dir: Path) -> Path:
    """The SQLite file of an embedded service."""
    return state_dir / "laneway.db"


def prepare_state_dir(state_dir: Path) -> None:
    """Make it, for its owner alone. Raises StartError."""
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise StartError(f"The state directory {state_dir} cannot be made: {problem.strerror}.") from None
    if not os.access(state_dir, os.W_OK | os.X_OK):
        raise StartError(f"The state directory {state_dir} is not writable.")


SECRET_BYTES = 32


def secret_key(state_dir: Path, given: str = "") -> bytes:
    """The key that the ledger's references are made with: as given, else `secret.key`, made when missing.

    Raises StartError.
    """
    if given:
        if len(given) < SECRET_BYTES // 2:
            raise StartError(f"LANEWAY_SECRET_KEY is too short; give it at least {SECRET_BYTES // 2} characters.")
        return given.encode()
    path = state_dir / "secret.key"
    try:
        with contextlib.suppress(FileExistsError):
            fresh = path.with_suffix(f".{os.getpid()}")
            fresh.touch(mode=0o600)
            fresh.write_text(secrets.token_hex(SECRET_BYTES))
            try:
                os.link(fresh, path)  # whole or not at all, also if the process dies here
            finally:
                fresh.unlink()
        kept = path.read_text().strip()
    except OSError as problem:
        raise StartError(f"The key file {path} cannot be used: {problem.strerror}.") from None
    if len(kept) < SECRET_BYTES:
        raise StartError(f"The key file {path} is damaged. Restore it, or delete it to have another one made.")
    return kept.encode()


class StateLock:
    """Held by the one process that serves a state directory. The kernel frees it when the process dies."""

    def __init__(self, state_dir: Path) -> None:
        self._dir = state_dir
        self._owner = state_dir / "laneway.owner"
        self._lock = FileLock(state_dir / "laneway.lock", thread_local=False)

    def acquire(self) -> None:
        """Raises StateDirBusy that names the holder, StartError when the lock cannot be made."""
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise StateDirBusy(
                f"Another Laneway serves the state directory {self._dir}{self._holder()}. Stop it first, or give this "
                "one a directory of its own (--state-dir or LANEWAY_STATE_DIR)."
            ) from None
        except OSError as problem:
            raise StartError(f"The state directory {self._dir} cannot be locked: {problem.strerror}.") from None

    def tell(self, owner: dict[str, Any]) -> None:
        """Write down who holds it, for whoever is refused."""
        self._owner.write_bytes(orjson.dumps(owner))

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._owner.unlink()
        self._lock.release()

    def _holder(self) -> str:
        """Who holds it: believed only while the lock is refused, since the record outlives its writer."""
        try:
            owner = orjson.loads(self._owner.read_bytes())
            return f": process {owner['pid']}, {owner['url']}, since {owner['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            return ""
