"""A process that holds a session's write lock: `python -m tests.kit.lock_holder STATE_DIR SESSION_KEY WHO`.

It prints `held`, and lets go when its standard input ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from app.clock import SystemClock
from app.store.session_lock import SessionLocks
from tests.kit.environment import clean_environ

ROOT = Path(__file__).resolve().parents[2]


class LockHolder:
    """`async with LockHolder(state_dir, key) as holder:` holds it inside, unless it is let go or killed before."""

    def __init__(self, state_dir: Path, session_key: str, who: str = "the holder of the test") -> None:
        self._arguments = (str(state_dir), session_key, who)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def let_go(self) -> None:
        """And end."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.wait_for(self._process.wait(), 60)

    async def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.kit.lock_holder", *self._arguments,
            env=clean_environ(os.environ), cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert await asyncio.wait_for(self._process.stdout.readline(), 60) == b"held\n"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.returncode is None:
            await self.kill()


async def _hold(state_dir: str, session_key: str, who: str) -> None:
    locks = SessionLocks(Path(state_dir), SystemClock(), timeout_ms=30_000)
    locks.prepare()
    async with locks.hold(session_key, who):
        sys.stdout.write("held\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.buffer.read)


if __name__ == "__main__":
    asyncio.run(_hold(*sys.argv[1:]))
