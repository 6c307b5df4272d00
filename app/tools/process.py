"""Commands as processes: each under a guard, in a group that can be found and killed again after the service has died.

What is promised on Linux: nothing that a command has started outlives the call, the guard, or the service. Where a
system has no `/proc`, the command's process group is what is killed; what has left that group is not found.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from app.tools import process_guard

MARKER = "LANEWAY_TOOL_CALL"
"""Variable that every process of a command has, with the call's id."""

READ_BYTES = 65_536
STOP_WITHIN_S = 2.5
"""How long a guard has to end what it guards, its second of grace included, before it is killed from outside."""

DRAIN_WITHIN_S = 1.0
"""How long the end of the output may take when everything that could write it was killed."""

KILL_WITHIN_S = 5.0
KILL_PAUSE_S = 0.02

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

log = structlog.get_logger("laneway.tools")


class Guarded:
    """A command under its guard. It begins with `go`."""

    def __init__(self, process: asyncio.subprocess.Process, group: str) -> None:
        self._process = process
        self.group = group
        """For `kill_group`, in this process or a later one."""

    def go(self) -> None:
        """Let the command begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(process_guard.GO)

    async def output(self) -> AsyncIterator[bytes]:
        """What the command writes, standard output and errors in their order, until nothing of it is left."""
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(READ_BYTES):
            yield data

    async def status(self) -> int:
        """The command's status as a shell gives it: 128 and the signal, when it was killed."""
        return await self._process.wait()

    async def end(self) -> None:
        """Everything of it has ended when this returns; at once when the command has."""
        stdin = self._process.stdin
        assert stdin is not None
        if self._process.returncode is None:
            with contextlib.suppress(ConnectionError, RuntimeError):
                stdin.write(process_guard.TERMINATE)
        elif self._process.returncode < 0:
            # The guard did not end by itself, so nobody has ended what it guarded.
            await kill_group(self.group)
        # A loop may hold back the end of a process, and keeps its pipe open, until its output was read.
        draining = asyncio.ensure_future(self._drain())
        try:
            await asyncio.wait_for(asyncio.gather(self._process.wait(), asyncio.shield(draining)), STOP_WITHIN_S)
        except TimeoutError:
            log.warning("tool.guard-killed", group=self.group)
            await self._end_from_outside()
        await asyncio.wait({draining}, timeout=DRAIN_WITHIN_S)
        if not draining.done():
            log.error("tool.output-held", group=self.group)
            draining.cancel()
            await asyncio.wait({draining})
        stdin.close()
        with contextlib.suppress(ConnectionError):
            await stdin.wait_closed()

    async def _end_from_outside(self) -> None:
        await kill_group(self.group)
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        try:
            await asyncio.wait_for(self._process.wait(), DRAIN_WITHIN_S)
        except TimeoutError:
            log.error("tool.guard-not-ended", group=self.group)

    async def _drain(self) -> None:
        async for _ in self.output():
            pass


@asynccontextmanager
async def guarded(command: str, cwd: Path, environ: Mapping[str, str], call_id: str) -> AsyncIterator[Guarded]:
    """Start the guard; whatever happens inside, everything of the command has ended behind it. Raises OSError."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        process_guard.__file__,
        command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=cwd,
        env={**environ, MARKER: call_id},
        start_new_session=True,
        limit=READ_BYTES,
    )
    one = Guarded(process, _group_of(process.pid, call_id))
    try:
        yield one
    finally:
        ending = asyncio.ensure_future(one.end())
        stopped: asyncio.CancelledError | None = None
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError as stop:
                stopped = stop
        ending.result()
        if stopped is not None:
            raise stopped


async def kill_group(group: str) -> bool:
    """Kill what is left of a group, guard included. False when nothing of it was found, or it is not of this machine.

    A process belongs to it by the guard's own process group or session, while that guard lives and began when the
    group says, or by the marker in its environment. Not found is a process without the marker (`env -i`, another
    user's) whose guard was killed: the numbers of a group and session may have been given out again since.
    """
    return await asyncio.to_thread(_kill_group, group)


def _group_of(pid: int, call_id: str) -> str:
    found = _stat(pid)
    return f"{_boot_id()}:{pid}:{found.began if found else 0}:{call_id}"


def _kill_group(group: str) -> bool:
    try:
        boot, leader_text, began_text, call_id = group.split(":")
        leader, began = int(leader_text), int(began_text)
    except ValueError:
        return False
    if boot != _boot_id() or leader <= 1 or not call_id:
        return False
    killed = False
    deadline = time.monotonic() + KILL_WITHIN_S
    while (members := _members(leader, began, call_id)) and time.monotonic() < deadline:
        killed = True
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in members:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        time.sleep(KILL_PAUSE_S)
    if members:
        log.error("tool.group-not-killed", group=group, left=len(members))
    return killed


def _members(leader: int, began: int, call_id: str) -> set[int]:
    first = _stat(leader)
    leads = first is not None and first.began == began
    marker = f"{MARKER}={call_id}".encode()
    found: set[int] = set()
    for name in _processes():
        stat = _stat(name)
        if stat is None or name == os.getpid():
            continue
        if (leads and leader in (stat.group, stat.session)) or marker in _environment(name):
            found.add(name)
    return found


@dataclass(frozen=True, slots=True)
class _Stat:
    """Of `/proc/<pid>/stat`; `began` in clock ticks since the boot."""

    group: int
    session: int
    began: int


def _stat(pid: int) -> _Stat | None:
    """None when it is gone, or only waits to be taken in."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return _Stat(int(fields[2]), int(fields[3]), int(fields[19]))


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"
