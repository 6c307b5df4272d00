"""A process under measurement: spawned on a free loopback port, watched, and stopped by its own pid."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.wire import now

ROOT = Path(__file__).resolve().parent.parent
READY_S_MAX = 60.0
STOP_S_MAX = 15.0

_URL = re.compile(r"http://127\.0\.0\.1:(\d+)")


class NotStarted(Exception):
    """The process ended, or said nothing of a port, within READY_S_MAX."""


@dataclass
class Process:
    """One child. `spawned_at` is on the clock of `wire.now`."""

    child: asyncio.subprocess.Process
    log: Path
    port: int
    spawned_at: float
    _reading: asyncio.Task[None] | None = None

    @classmethod
    async def spawn(cls, argv: list[str], environment: dict[str, str], log: Path) -> Process:
        """Start it and wait for the line that names its port. Raises NotStarted."""
        spawned_at = now()
        with log.open("ab") as errors:
            child = await asyncio.create_subprocess_exec(
                *argv,
                env={**_quiet_environment(), **environment},
                cwd=ROOT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # an interrupt at the terminal is ours to pass on
            )
        process = cls(child, log, 0, spawned_at)
        try:
            async with asyncio.timeout(READY_S_MAX):
                process.port = await process._port()
        except TimeoutError:
            await process.stop()
            raise NotStarted(f"not ready within {READY_S_MAX:g} s") from None
        except BaseException:
            await process.stop()
            raise
        process._reading = asyncio.create_task(process._read_on())
        return process

    async def _port(self) -> int:
        assert self.child.stdout is not None
        while line := await self.child.stdout.readline():
            found = _URL.search(line.decode(errors="replace"))
            if found:
                return int(found[1])
        raise NotStarted("ended at its start: " + self.log.read_text(errors="replace")[-1500:].strip())

    async def _read_on(self) -> None:
        assert self.child.stdout is not None
        while await self.child.stdout.read(65536):
            pass

    def memory_bytes(self) -> int:
        """Proportional set size with all children: what is shared counts once. Unique set size where there is none."""
        total = 0
        for process in self._family():
            with suppress(psutil.Error):
                info = process.memory_full_info()
                total += getattr(info, "pss", info.uss)
        return total

    def cpu_s(self) -> float:
        """CPU time so far, user and system, of all threads and children."""
        total = 0.0
        for process in self._family():
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def _family(self) -> list[psutil.Process]:
        try:
            process = psutil.Process(self.child.pid)
            return [process, *process.children(recursive=True)]
        except psutil.Error:
            return []

    async def stop(self) -> None:
        """End it: politely, then not. Only this child is signalled."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.child.returncode is None:
                with suppress(ProcessLookupError):
                    self.child.send_signal(number)
                with suppress(TimeoutError):
                    async with asyncio.timeout(STOP_S_MAX):
                        await self.child.wait()
        if self._reading is not None:
            self._reading.cancel()


def _quiet_environment() -> dict[str, str]:
    """The caller's environment without what would configure a service or a model by accident."""
    dropped = ("LANEWAY_", "OPENAI_", "ANTHROPIC_")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
