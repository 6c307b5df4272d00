"""Capacity of the global lanes, and whose turn it is when there is not enough of it."""

from __future__ import annotations

from dataclasses import dataclass

MAIN = "main"
PROBATION = "probation"
"""Lane of one for runs that stalled twice, beside their own lane: what keeps killing the process is found alone."""

STALLED_ON_PROBATION = 3
"""`stalled` of a running run that is on its last attempt; it counts up at each take."""

STALLED_MAX = 3
"""Attempts without progress; a run that would be taken once more ends as interrupted."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many runs of the global lane `main` execute at once in this deployment."""

    main: int

    def of(self, lane: str) -> int:
        return 1 if lane == PROBATION else self.main


def may_take(free: int, waiting_longer: int) -> bool:
    """A slot goes to who has waited longest: it is mine only if all who waited longer get one too."""
    return free > waiting_longer
