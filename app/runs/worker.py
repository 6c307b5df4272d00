"""This process as a worker: its incarnation, and what it takes runs with."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from app.clock import Clock, Ids
from app.domain.capacity import Capacity
from app.store.transaction.lane import Taker
from app.store.transaction.worker import Incarnation

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_SPACE = Path("/proc/self/ns/pid")


class Worker:
    """One incarnation. A dead id never lives again, so each start makes a new one."""

    def __init__(self, clock: Clock, ids: Ids, capacity: Capacity) -> None:
        self.id = ids.new()
        self._clock = clock
        self._ids = ids
        self._capacity = capacity
        self.draining = False

    def incarnation(self) -> Incarnation:
        """As its row names it."""
        return Incarnation(self.id, socket.gethostname(), os.getpid(), boot_id())

    def taker(self) -> Taker:
        """For a step that is about to be handed to the store."""
        return Taker(self.id, self._capacity, self._clock.now_ms(), self._ids, self.draining)


def boot_id() -> str:
    """Changes with each boot of the machine, and from one space of process ids to another; empty where unknown."""
    try:
        return f"{_BOOT_ID.read_text().strip()} {_PID_SPACE.readlink()}"
    except OSError:
        return ""


def is_gone(other: Incarnation) -> bool:
    """Whether a process of this machine is known to have ended. One of elsewhere may live."""
    if not other.boot_id or other.boot_id != boot_id():
        return False
    try:
        state = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    except (OSError, IndexError):
        return False
    return state in "ZX"
