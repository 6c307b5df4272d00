"""The side of `warm` that orders: a service forked from a process that has loaded it, as if it were a child here."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kit import stepped_clock
from tests.kit.environment import clean_environ
from tests.kit.warm import PROGRAMS

_LOADED_WITHIN_S = 120.0
_OWN = ("LANEWAY_", "PROBE_LOG", "PYTEST_", stepped_clock.VARIABLE)
"""Beginnings of the variables that only what is started reads, or nothing at all."""


class Forks:
    """One warm process, started when first needed and kept; for one thread. `guard` stands before its command."""

    def __init__(self, guard: Sequence[str]) -> None:
        self._buffered = b""
        self._ended: dict[int, int] = {}
        self._process = subprocess.Popen(
            [*guard, sys.executable, "-m", "tests.kit.warm"],
            env=_inherited(clean_environ(os.environ)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        atexit.register(self.close)

    @staticmethod
    def serve(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
        """Whether this can be forked: a program that it knows, and all that Python reads at its start is as here."""
        known = len(arguments) > 1 and arguments[0] == "-m" and arguments[1] in PROGRAMS
        return known and _inherited(environ) == _inherited(clean_environ(os.environ))

    def start(
        self, arguments: Sequence[str], environ: Mapping[str, str], folder: Path, files: tuple[Path, Path, Path]
    ) -> Fork:
        """What `serve` says yes to. It reads the first of the files, and writes at the ends of the others."""
        order = {"argv": list(arguments), "environ": dict(environ), "folder": str(folder)}
        order["files"] = [str(path) for path in files]
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        limit = time.monotonic() + _LOADED_WITHIN_S
        while True:
            pid = self._read(limit - time.monotonic())
            if pid is not None:
                return Fork(self, pid)
            assert time.monotonic() < limit, "the warm process does not answer"

    def ended(self, pid: int, within_s: float = 0.0) -> int | None:
        """Its exit code; None while it lives."""
        limit = time.monotonic() + within_s
        while pid not in self._ended:
            left = limit - time.monotonic()
            self._read(max(left, 0.0))
            if left <= 0:
                break
        return self._ended.get(pid)

    def _read(self, within_s: float) -> int | None:
        """Take in what has come. The process that was started, if it says so."""
        assert self._process.stdout is not None
        started = None
        if select.select([self._process.stdout], [], [], within_s)[0]:
            data = os.read(self._process.stdout.fileno(), 65536)
            assert data, "the warm process has ended"
            *lines, self._buffered = (self._buffered + data).split(b"\n")
            for line in lines:
                what, pid, *code = line.split()
                if what == b"started":
                    started = int(pid)
                    self._ended.pop(started, None)
                else:
                    self._ended[int(pid)] = int(code[0])
        return started

    def close(self) -> None:
        """End it, and with it whatever it still has."""
        self._process.kill()
        self._process.wait(10)


class Fork:
    """A child, with what is needed of `subprocess.Popen`."""

    def __init__(self, forks: Forks, pid: int) -> None:
        self._forks = forks
        self._code: int | None = None
        self.pid = pid

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._forks.ended(self.pid)
        return self._code

    def wait(self, timeout: float) -> int:
        if self._code is None:
            self._code = self._forks.ended(self.pid, timeout)
        if self._code is None:
            raise subprocess.TimeoutExpired("fork", timeout)
        return self._code


def _inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """What of an environment Python or a library may read before the program does."""
    return {name: value for name, value in environ.items() if not name.startswith(_OWN)}
