"""Load: a number of clients, each with its next call when the last has ended, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from benchmarks.targets import Call
from benchmarks.wire import Broken, now

ERRORS_MAX = 50
"""A load that fails so often is given up."""


@dataclass
class Load:
    """Calls that ended well, the time from the first to the last, and why others did not."""

    calls: list[Call] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    begun: float = field(default_factory=now)

    @property
    def per_s(self) -> float:
        return len(self.calls) / self._wall_s

    @property
    def deltas_per_s(self) -> float:
        return sum(call.deltas for call in self.calls) / self._wall_s

    @property
    def events_per_s(self) -> float:
        return sum(call.events for call in self.calls) / self._wall_s

    @property
    def accept_ms(self) -> list[float]:
        return [(call.accepted - call.begun) * 1000 for call in self.calls]

    @property
    def _wall_s(self) -> float:
        return max((call.done for call in self.calls), default=now()) - self.begun


async def load(one: Callable[[int], Awaitable[Call]], calls: int, clients: int, seconds_max: float) -> Load:
    """`calls` calls in all (the n-th is `one(n)`); none begins after `seconds_max`. Raises Broken when all fail."""
    done = Load()
    following = iter(range(calls))

    async def client() -> None:
        for n in following:
            if now() - done.begun > seconds_max or len(done.errors) > ERRORS_MAX:
                return
            try:
                done.calls.append(await one(n))
            except (OSError, Broken, TimeoutError) as problem:
                done.errors.append(str(problem) or repr(problem))

    await asyncio.gather(*(client() for _ in range(clients)))
    if not done.calls:
        raise Broken(f"no call went well: {done.errors[:1]}")
    return done
