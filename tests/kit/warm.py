"""A process that has loaded the service and forks one on order, so that a start does not pay for the imports again.

Run as `python -m tests.kit.warm`. Orders come on standard input, one JSON object a line: `argv` (what stands behind
`python`), `environ`, `folder`, and the `files` to read from, to print to, and for errors. It answers on standard
output, one line each: `started PID` to an order, and `ended PID CODE` when a child has (minus the signal's number when
it was killed). Its children die with it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tests.kit import stepped_clock

PROGRAMS = {"app.cli": "app.cli.main", "tests.kit.tool_service": "tests.kit.tool_service"}
"""What can be run, and the module whose `main` it is."""

_LOADED = (
    *PROGRAMS.values(),
    *("app.cli.serve", "app.main", "app.assembly", "app.store.postgres", "uvloop", "httptools"),
    *("app.cli.audit", "app.cli.doctor", "app.cli.migrate", "app.cli.runs", "app.cli.sessions"),
    *("app.providers.client", "app.providers.stream", "app.providers.rehearsal", "app.providers.openai_vendor"),
)
_PR_SET_PDEATHSIG = 1


def orders() -> Callable[[], None]:
    """Fork a child for each order, until there are no more. Returns in a child, with what it shall run."""
    wake, woken = socket.socketpair()
    for end in (wake, woken):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken.fileno())
    buffered = b""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            wake.recv(4096)
            _tell_ended()
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                sys.exit()
            *lines, buffered = (buffered + data).split(b"\n")
            for line in lines:
                parent = os.getpid()
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    return _prepared(json.loads(line), parent)
                _tell(f"started {pid}")


def _tell_ended() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(f"ended {pid} {os.waitstatus_to_exitcode(status)}")


def _tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def _prepared(order: dict[str, Any], parent: int) -> Callable[[], None]:
    """In the child: as if Python had been started for it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(3)
    os.setsid()
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environ"])
    for target, path in enumerate(order["files"]):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT if target else os.O_RDONLY), target)
    os.closerange(3, 1024)
    if stepped_clock.VARIABLE in os.environ:
        stepped_clock.install(os.environ[stepped_clock.VARIABLE])
    module = PROGRAMS[order["argv"][1]]
    sys.argv = [module, *order["argv"][2:]]
    return import_module(module).main  # type: ignore[no-any-return]


if __name__ == "__main__":
    for name in _LOADED:
        import_module(name)
    gc.collect()
    gc.freeze()
    orders()()
