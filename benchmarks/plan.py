"""The plan of one run: how much is measured, how often, for how long at most, and what went wrong on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.load import Load

LOAD_S_MAX = 20.0
"""No call of a load begins later than this."""


@dataclass
class Plan:
    """`scale` multiplies every count of calls; the number of clients and of sessions stays."""

    scale: float = 1.0
    repeats: int = 3
    errors: list[str] = field(default_factory=list)
    others: dict[str, float] = field(default_factory=dict)
    """By measurement: the share of the CPUs that other processes took meanwhile."""

    def count(self, full: int, least: int = 1) -> int:
        return max(least, round(full * self.scale))

    def checked(self, what: str, load: Load) -> Load:
        """The load; calls that failed are noted, because a figure without them flatters."""
        if load.errors:
            total = len(load.calls) + len(load.errors)
            self.errors.append(f"{what}: {len(load.errors)} of {total} calls failed, the first with: {load.errors[0]}")
        return load
