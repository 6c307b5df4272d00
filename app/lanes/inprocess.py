"""Lanes drained in this process: one task for each session that has work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from app.lanes.contract import Drain
from app.store.transaction.wake import Wake

log = structlog.get_logger("laneway.lanes")


class InProcessLanes:
    """Owns the drain tasks. A wake for a session whose drain is just ending is kept until it has ended."""

    def __init__(self) -> None:
        self._drain: Drain | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._next: dict[str, Wake] = {}
        self._closed = False

    def start(self, drain: Drain) -> None:
        """Say who drains. Wakes before this are an error of the assembly."""
        self._drain = drain

    def wake(self, wakes: Iterable[Wake]) -> None:
        for wake in wakes:
            if self._closed:
                return
            if wake.session_id in self._tasks:
                self._next[wake.session_id] = wake
            else:
                self._begin(wake)

    def drains(self, session_id: str) -> bool:
        return session_id in self._tasks

    async def settled(self, timeout_s: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self._tasks:
            left_s = deadline - loop.time()
            if left_s <= 0:
                return False
            await asyncio.wait(list(self._tasks.values()), timeout=left_s)
        return True

    async def close(self) -> None:
        self._closed = True
        self._next.clear()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, wake: Wake) -> None:
        assert self._drain is not None, "lanes were not started"
        task = asyncio.ensure_future(self._drain(wake))
        self._tasks[wake.session_id] = task
        task.add_done_callback(lambda done: self._ended(wake.session_id, done))

    def _ended(self, session_id: str, task: asyncio.Task[None]) -> None:
        del self._tasks[session_id]
        if not task.cancelled() and task.exception() is not None:
            # The sweep finds the lane that this drain left behind.
            log.error("lane.drain-failed", session_id=session_id, exc_info=task.exception())
        again = self._next.pop(session_id, None)
        if again is not None and not self._closed:
            self._begin(again)
