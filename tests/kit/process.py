"""The process under test: started, watched by its output, stopped by its own id, and never left behind.

Output goes to a file, so nothing blocks on a pipe; standard error too, or to a file of its own. A guard in front of
the program asks the kernel to kill it when the thread that started it ends, so start it from the main thread.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.kit import stepped_clock
from tests.kit.forks import Fork, Forks

_READY = re.compile(r"^Laneway ready on (http://\S+)$", re.MULTILINE)
_POLL_S = 0.01
_GUARD = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(3)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class StartFailed(AssertionError):
    """The service did not become ready; the text has its output."""


class Process:
    """One life of the program. `address` is set once it is ready."""

    def __init__(  # noqa: PLR0913
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        folder: Path,
        log: Path,
        *,
        errors: Path | None = None,
        stdin: Path = Path(os.devnull),
    ) -> None:
        self.address = ""
        self._log = log
        with log.open("ab") as output, (errors or log).open("ab") as second, stdin.open("rb") as given:
            self._log_from = output.tell()
            if _is_main_thread() and Forks.serve(arguments, environ):
                files = (stdin, log, errors or log)
                self._child: subprocess.Popen[bytes] | Fork = _forks().start(arguments, environ, folder, files)
            else:
                assert stepped_clock.VARIABLE not in environ, "only what is forked has a clock that can be set"
                self._child = subprocess.Popen(
                    [*_guard(), sys.executable, *arguments],
                    cwd=folder,
                    env=dict(environ),
                    stdin=given,
                    stdout=output,
                    stderr=second,
                    start_new_session=True,
                )
        self.pid = self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it lives; minus the signal's number when it was killed."""
        return self._child.poll()

    @property
    def output(self) -> str:
        """What this life has printed."""
        with self._log.open("rb") as file:
            file.seek(self._log_from)
            return file.read().decode("utf-8", "replace")

    def send(self, number: signal.Signals) -> None:
        """A signal, if it still lives."""
        if self.alive:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.send(signal.SIGCONT)

    def look_ready(self, limit: float) -> bool:
        """Whether the ready line has come. StartFailed when the process ended or the time is over."""
        if found := _READY.search(self.output):
            self.address = found.group(1).rstrip("/")
            return True
        code = self.exit_code
        if code is not None:
            raise StartFailed(f"the service ended with {code} before it was ready:\n{self.output}")
        if time.monotonic() > limit:
            self.end()
            raise StartFailed(f"the service was not ready in time:\n{self.output}")
        return False

    def wait_ready(self, timeout_s: float) -> None:
        """Block until it is ready."""
        limit = time.monotonic() + timeout_s
        while not self.look_ready(limit):
            time.sleep(_POLL_S)

    async def until_ready(self, timeout_s: float) -> None:
        """Await until it is ready."""
        limit = time.monotonic() + timeout_s
        while not self.look_ready(limit):  # noqa: ASYNC110 - nothing but its output tells
            await asyncio.sleep(_POLL_S)

    def wait_exit(self, timeout_s: float) -> int:
        """Block until it has ended; its exit code."""
        limit = time.monotonic() + timeout_s
        while (code := self.exit_code) is None:
            if time.monotonic() > limit:
                raise TimeoutError(f"the service still lives after {timeout_s} s:\n{self.output[-4000:]}")
            time.sleep(_POLL_S)
        return code

    async def until_exit(self, timeout_s: float) -> int:
        """As `wait_exit`, awaited."""
        limit = time.monotonic() + timeout_s
        while (code := self.exit_code) is None:
            if time.monotonic() > limit:
                raise TimeoutError(f"the service still lives after {timeout_s} s:\n{self.output[-4000:]}")
            await asyncio.sleep(_POLL_S)
        return code

    def end(self) -> None:
        """Kill it, stopped or not, and take its exit code."""
        self.send(signal.SIGKILL)
        self._child.wait(10)


@cache
def _forks() -> Forks:
    """The warm process of this one."""
    return Forks(_guard())


def _guard() -> list[str]:
    return [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid())] if _is_main_thread() else []


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
