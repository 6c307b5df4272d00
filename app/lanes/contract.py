"""The seam for where lanes are drained. Queue state is in the database; this only says: somebody drain that lane.

A wake may be lost, repeated or late without harm: a drain adopts the lane by its generation or ends quietly, and the
sweep wakes again what nobody drains.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from app.store.transaction.wake import Wake

Drain = Callable[[Wake], Awaitable[None]]
"""Drains one lane until it is left. Must not raise for anything that one run does."""


class Lanes(Protocol):
    """Places to drain lanes."""

    def wake(self, wakes: Iterable[Wake]) -> None:
        """Have each lane drained soon. Called on the event loop after the COMMIT that woke it; does not block."""
        ...

    def drains(self, session_id: str) -> bool:
        """Whether a drain of that session lives here."""
        ...

    async def settled(self, timeout_s: float) -> bool:
        """Wait until nothing drains any more; False when the time was over first."""
        ...

    async def close(self) -> None:
        """Cancel what still drains and wait until it is gone."""
        ...
