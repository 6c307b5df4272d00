"""The machine under the measurement: how busy others kept it meanwhile, which no repeat and no median makes up for."""

from __future__ import annotations

import os
import platform
from typing import Any

import psutil

from benchmarks.process import Process
from benchmarks.wire import now

BUSY_SHARE = 0.1
"""With others above this, figures are worse than the service is."""


class Bystanders:
    """The share of the CPUs that processes other than ours took since this was made. `model` outlives measurements."""

    def __init__(self, model: Process) -> None:
        self._model = model
        self._begun = now()
        self._busy_s = _busy_s()
        self._ours_s = self._ours()

    def share(self) -> float:
        """0 to 1. Ask when everything but the model server has ended: a child's time is known then."""
        foreign_s = (_busy_s() - self._busy_s) - (self._ours() - self._ours_s)
        cpus = psutil.cpu_count() or 1
        return min(1.0, max(0.0, foreign_s / ((now() - self._begun) * cpus)))

    def _ours(self) -> float:
        mine = os.times()
        return mine.user + mine.system + mine.children_user + mine.children_system + self._model.cpu_s()


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def described() -> dict[str, Any]:
    """What of the machine matters to figures; nothing that names it."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpus": psutil.cpu_count(),
        "python": platform.python_version(),
    }
