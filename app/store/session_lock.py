"""The lock on one session's transcript, across processes: a file for each session, locked by the kernel.

Whoever writes to a transcript holds it meanwhile. The kernel frees it when the process dies, so nothing is ever left
to clean up. Waiting is polling: a thread that waited in the kernel would outlive its cancelled task and then keep the
lock. The file holds who has it, for whoever is refused; it is emptied at the release, so a record that is found by
the next holder was left by one that died. It is never unlinked: two processes would then lock two files.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import structlog
from filelock import lock_descriptor

from app.clock import Clock, rfc3339
from app.errors import SessionBusy, StartError
from app.store.contract import LockUnusable

POLL_S_MIN = 0.002
POLL_S_MAX = 0.1
"""Between two tries of a waiter: doubling from the one to the other."""

RECORD_BYTES_MAX = 1024
WHO_CHARS_MAX = 200

_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EINTR})

log = structlog.get_logger("laneway.session-lock")


class LockReentered(AssertionError):
    """The holder asked again without saying that it may: waiting would be waiting for itself."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has the lock, as it was written down. `who` is a run or a command."""

    pid: int
    host: str
    who: str
    since: str

    def __str__(self) -> str:
        where = "" if self.host == socket.gethostname() else f" on {self.host}"
        return f"{self.who} (process {self.pid}{where}, since {self.since})"


@dataclass(slots=True)
class _Held:
    descriptor: int
    who: str
    times: int = 1


class SessionLocks:
    """The locks of one state directory, as one process takes them. Belongs to one event loop."""

    def __init__(self, state_dir: Path, clock: Clock, *, timeout_ms: int) -> None:
        self._folder = state_dir / "locks"
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._held: dict[Path, _Held] = {}
        self._host = socket.gethostname()[:WHO_CHARS_MAX]

    def prepare(self) -> None:
        """Make the folder, for its owner alone. Raises StartError."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            fine = stat.S_ISDIR(self._folder.lstat().st_mode)
        except OSError as problem:
            raise StartError(
                f"The folder of session locks {self._folder} cannot be made: {problem.strerror}."
            ) from None
        if not fine or not os.access(self._folder, os.W_OK | os.X_OK):
            raise StartError(f"{self._folder} is no folder that can be written; session locks are kept there.")

    @contextlib.asynccontextmanager
    async def hold(
        self,
        session_key: str,
        who: str,
        *,
        allow_reentrant: bool = False,
        timeout_ms: int | None = None,
        hurried: Callable[[], bool] = lambda: False,
    ) -> AsyncIterator[None]:
        """As the contract says. Raises LockReentered for a writer that asks twice without saying that it may."""
        path = self._path(session_key)
        limit_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        until_s = self._clock.steady_s() + limit_ms / 1000
        pause_s = POLL_S_MIN
        while (refusal := self._refusal(path, who, allow_reentrant=allow_reentrant)) is not None:
            left_s = until_s - self._clock.steady_s()
            if left_s <= 0 or hurried():
                raise refusal()
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(POLL_S_MAX, pause_s * 2)
        try:
            yield
        finally:
            self._release(path)

    def _refusal(self, path: Path, who: str, *, allow_reentrant: bool) -> Callable[[], Exception] | None:
        """Try once. None: it is held now; else what to raise when waiting ends."""
        try:
            if self._take(path, who, allow_reentrant=allow_reentrant):
                return None
        except LockUnusable as problem:
            if not problem.passing:
                raise
            return partial(LockUnusable, str(problem), passing=True)
        return lambda: SessionBusy(_busy(self._holder(path), self._timeout_ms))

    def _path(self, session_key: str) -> Path:
        return self._folder / f"{hashlib.sha256(session_key.encode()).hexdigest()}.lock"

    def _take(self, path: Path, who: str, *, allow_reentrant: bool) -> bool:
        held = self._held.get(path)
        if held is not None and held.who == who:
            if not allow_reentrant:
                raise LockReentered(f"{who} holds this session's write lock already and asked for it again")
            held.times += 1
            return True
        if held is not None:
            return False
        with contextlib.ExitStack() as undo:
            try:
                descriptor = os.open(path, _OPEN, 0o600)
                undo.callback(os.close, descriptor)
                plain = stat.S_ISREG(os.fstat(descriptor).st_mode)
                if plain and not lock_descriptor(descriptor, blocking=False):
                    return False
            except OSError as problem:
                raise LockUnusable(
                    f"The lock file {path} cannot be used: {problem.strerror}.", passing=problem.errno in _PASSING
                ) from None
            if not plain:
                raise LockUnusable(f"The lock file {path} is no plain file; move it away.")
            undo.pop_all()
        self._held[path] = _Held(descriptor, who)
        try:
            self._sign(descriptor, who)
        except OSError as problem:  # a full disk, say: what counts is the kernel's lock
            log.warning("session-lock.not-signed", problem=str(problem.strerror))
        return True

    def _sign(self, descriptor: int, who: str) -> None:
        """Write down who has it now. What stands there is of a holder that died."""
        left = os.pread(descriptor, RECORD_BYTES_MAX, 0)
        if left:
            holder = _read(left)
            log.warning("session-lock.taken-over", dead_holder="unknown" if holder is None else str(holder), by=who)
            os.ftruncate(descriptor, 0)
        record = {
            "pid": os.getpid(),
            "host": self._host,
            "who": who[:WHO_CHARS_MAX],
            "since": rfc3339(self._clock.now_ms()),
        }
        os.pwrite(descriptor, orjson.dumps(record), 0)

    def _release(self, path: Path) -> None:
        held = self._held[path]
        held.times -= 1
        if held.times:
            return
        del self._held[path]
        try:
            os.ftruncate(held.descriptor, 0)
        except OSError as problem:
            log.warning("session-lock.not-emptied", problem=str(problem.strerror))
        finally:
            os.close(held.descriptor)  # which frees it

    def _holder(self, path: Path) -> Holder | None:
        """Believed only while the lock is refused."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return _read(os.pread(descriptor, RECORD_BYTES_MAX, 0))
        except OSError:
            return None
        finally:
            os.close(descriptor)


def _read(record: bytes) -> Holder | None:
    """None for what no holder wrote, or not to its end."""
    try:
        found: Any = orjson.loads(record)
        pid, host, who, since = found["pid"], found["host"], found["who"], found["since"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(pid, int) or not all(isinstance(text, str) and text.isprintable() for text in (host, who, since)):
        return None
    return Holder(pid, host, who, since)


def _busy(holder: Holder | None, limit_ms: int) -> str:
    who = "another process, which did not say who it is" if holder is None else str(holder)
    return (
        f"The session's transcript is locked by {who}, and waiting ended after "
        f"session.write_lock.acquire_timeout_ms ({limit_ms} ms). Try again, or end that process."
    )


class RowLocks:
    """Where writers share a database server, the locked row of the session is the lock: each step takes it itself."""

    @contextlib.asynccontextmanager
    async def hold(
        self,
        session_key: str,
        who: str,
        *,
        allow_reentrant: bool = False,
        timeout_ms: int | None = None,
        hurried: Callable[[], bool] = lambda: False,
    ) -> AsyncIterator[None]:
        """At once: there is nothing to wait for before the step."""
        yield
