"""The gate of event streams: how many a caller may hold, how many are open, when the last has gone."""

from __future__ import annotations

import asyncio
from collections import Counter

import anyio

from app.errors import RateLimited


class StreamGate:
    """Counts open streams. `enter` and `leave` come in pairs, from the event loop."""

    def __init__(self, per_principal_max: int) -> None:
        self._max = per_principal_max
        self._open: Counter[str] = Counter()
        self.closing = anyio.Event()
        """Set by the streaming library when a server that it knows is told to stop."""
        self._none_open = asyncio.Event()
        self._none_open.set()

    @property
    def open(self) -> int:
        """Streams open now, of all callers."""
        return self._open.total()

    def enter(self, principal: str) -> None:
        """Raises RateLimited when the caller holds as many as allowed."""
        if self._open[principal] >= self._max:
            raise RateLimited(
                f"{self._max} event streams are open, the bound of `limits.streams_per_principal`; close one first.",
                retry_after_ms=5000,
            )
        self._open[principal] += 1
        self._none_open.clear()

    def leave(self, principal: str) -> None:
        self._open[principal] -= 1
        if not self._open[principal]:
            del self._open[principal]
        if not self._open:
            self._none_open.set()

    async def gone(self, timeout_s: float) -> bool:
        """Wait until no stream is open; False when the time was over first."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._none_open.wait()
        except TimeoutError:
            return False
        return True
