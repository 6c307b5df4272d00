"""This process as a worker: its incarnation, and what it takes runs with."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from app.clock import Clock, Ids
from app.domain.capacity import Capacity
from app.store.transaction.lane import Taker

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Worker:
    """One incarnation. A dead id never lives again, so each start makes a new one."""

    def __init__(self, clock: Clock, ids: Ids, capacity: Capacity) -> None:
        self.id = ids.new()
        self._clock = clock
        self._ids = ids
        self._capacity = capacity
        self.draining = False

    def row(self, lease_ms: int) -> dict[str, Any]:
        """Its row in `worker`."""
        now_ms = self._clock.now_ms()
        return {
            "id": self.id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "boot_id": boot_id(),
            "started_at": now_ms,
            "lease_until": now_ms + lease_ms,
        }

    def taker(self) -> Taker:
        """For a step that is about to be handed to the store."""
        return Taker(self.id, self._capacity, self._clock.now_ms(), self._ids, self.draining)


def boot_id() -> str:
    """Changes with each boot of the machine; empty where the system does not tell."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
