"""The only doors for time, identity and chance.

Everything that reads a clock, makes an id or draws a number takes one of these, so that a simulation
can own them. Nothing else in the project imports `time`, `uuid` or `random` for that purpose.
"""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

import uuid_utils


class Clock(Protocol):
    """Wall time for people, steady time for durations."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC. May step back; order is never taken from it."""

    def steady_s(self) -> float:
        """Seconds of a clock that never steps back; only differences mean something."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def steady_s(self) -> float:
        return time.monotonic()


class Ids(Protocol):
    """Makes identifiers."""

    def new(self) -> str:
        """A UUIDv7 as lower-case text with hyphens (36 characters)."""


class UuidIds:
    """UUIDv7 from the machine's clock and entropy."""

    def new(self) -> str:
        return str(uuid_utils.uuid7())


class Chance(Protocol):
    """Draws numbers: jitter, nothing that must be secret."""

    def between(self, low: float, high: float) -> float:
        """A float drawn evenly from [low, high]."""


class SystemChance:
    """The process's pseudo-random generator."""

    def between(self, low: float, high: float) -> float:
        return random.uniform(low, high)


def rfc3339(ms: int) -> str:
    """Wire form of a time: RFC 3339 in UTC with milliseconds, such as `2026-11-30T20:31:07.123Z`."""
    seconds, rest = divmod(ms, 1000)
    return f"{_to_the_second(seconds)}.{rest:03d}Z"


@lru_cache(maxsize=64)  # many times are of the same few seconds
def _to_the_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
