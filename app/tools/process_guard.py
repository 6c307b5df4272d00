"""The guard of a command: a program of its own, started for each command, that outlives neither it nor the service.

`python -I -S process_guard.py COMMAND`. It waits for a byte on standard input before the command begins, and ends
everything that the command has started when the command ends, when it is told to, and when the other end of standard
input is gone, which is how it learns that the service has died. It imports nothing of the service and starts fast.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

GO = b"g"
TERMINATE = b"t"
GRACE_MS = 1_000
"""Between SIGTERM and SIGKILL, when it is told to terminate."""

HANDLES_MAX = 65_536
"""Handles above this are not looked for where a system reports no smaller limit."""

_PR_SET_CHILD_SUBREAPER = 36
_PROC = os.path.isdir("/proc/self")  # noqa: PTH112 - pathlib would cost a third of the start
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if _PROC:
        # What loses its parent becomes a child of this process, so that nothing gets away by a double fork.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Some loops leave their ends of the pipes open here under other numbers; the command would have them too.
    os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), HANDLES_MAX))
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    if os.read(0, 1) != GO:
        os._exit(0)
    command = _start(sys.argv[1])
    for handle in (1, 2):
        os.close(handle)
    os._exit(_watch(command, woken))


def _start(command: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        for number in (*_SIGNALS, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if not _PROC:
            os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.execv("/bin/sh", ["sh", "-c", command])  # noqa: S606 - it is the shell that is wanted
    finally:
        os._exit(127)


def _watch(command: int, woken: int) -> int:
    """Until the command has ended, or has to; then nothing of it is left. Its status as a shell gives it."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(woken, select.POLLIN)
    status: int | None = None
    while status is None:
        ready = dict(poll.poll())
        status = _reap(command, woken)
        if status is None and 0 in ready:
            asked = os.read(0, 1)
            if asked == TERMINATE:
                status = _terminate(command, woken, poll)
            if status is None:
                status = 128 + signal.SIGKILL
    _kill_all(command)
    return status


def _terminate(command: int, woken: int, poll: select.poll) -> int | None:
    """Ask all to end, and give them a moment. The command's status if it has ended by then."""
    # Stopped, told, and only then let go on: a shell whose child ends first would begin the next command.
    told = _stopped()
    for number in (signal.SIGTERM, signal.SIGCONT):
        for pid in told:
            _signal(pid, number)
    status: int | None = None
    deadline = time.monotonic() + GRACE_MS / 1_000
    while time.monotonic() < deadline and (status is None or _descendants()):
        ready = dict(poll.poll(20))
        ended = _reap(command, woken)
        status = ended if status is None else status
        if 0 in ready and os.read(0, 1) == b"":
            break
    return status


def _reap(command: int, woken: int) -> int | None:
    """Take in whatever has ended. The command's status if it is among them."""
    with contextlib.suppress(BlockingIOError):
        while os.read(woken, 512):
            pass
    status: int | None = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, how = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if pid == command:
                code = os.waitstatus_to_exitcode(how)
                status = code if code >= 0 else 128 - code
    return status


def _kill_all(command: int) -> None:
    """SIGKILL for every descendant, until there is none."""
    if not _PROC:
        with contextlib.suppress(OSError):
            os.killpg(command, signal.SIGKILL)
        return
    while True:
        for pid in _stopped():
            _signal(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
            # All that has ended by now, or each of a thousand would cost a look at every process.
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def _stopped() -> set[int]:
    """Every descendant, stopped, so that none can make more meanwhile."""
    stopped: set[int] = set()
    while new := _descendants() - stopped:
        for pid in new:
            _signal(pid, signal.SIGSTOP)
        stopped |= new
    return stopped


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _descendants() -> set[int]:
    """All that descends from this process and lives."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if _PROC else ():  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:
                continue
            if state not in (b"Z", b"X"):
                children.setdefault(int(parent), []).append(int(name))
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in found:
                found.add(pid)
                todo.append(pid)
    return found


if __name__ == "__main__":
    main()
