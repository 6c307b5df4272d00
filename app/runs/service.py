"""The service as one object: what the API and the command line talk to, and its life from open to close."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import structlog

from app.events.reader import EventReader
from app.runs.control import RunControl
from app.runs.executor import Executor, Surroundings
from app.runs.intake import RunIntake
from app.runs.recovery import Sweeper
from app.runs.streams import StreamGate
from app.runs.wait import RunWaiter
from app.store.contract import Lease, StoreClosed

STREAMS_LEAVE_S = 2.0
"""How long the end of the process waits for streams that were told to come back to take the word."""

HAND_OVER_SLACK_S = 5.0
"""Beyond the abort drain, how long the end of the process waits for attempts to be handed over."""

log = structlog.get_logger("laneway.service")


@dataclass
class Service:
    """Everything of one process. Built by `assembly.build`, opened and closed once."""

    around: Surroundings
    executor: Executor
    intake: RunIntake
    control: RunControl
    waiter: RunWaiter
    reader: EventReader
    sweeper: Sweeper
    streams: StreamGate
    lease: Lease | None = None
    _background: list[asyncio.Task[None]] = field(default_factory=list)

    async def open(self) -> None:
        """Recover what an earlier process left, then keep watch. Raises StoreUnusable."""
        try:
            await self.sweeper.begin()
        except StoreClosed:
            raise await self.around.store.failed from None
        if self.lease is not None:
            self.lease.start()
        self._keep(self.sweeper.sweep_until_cancelled(), "sweep")
        self._keep(self.reader.poll_until_cancelled(), "poll")
        self._keep(self._end_with_server(), "server")

    def warm(self) -> None:
        """After the port is open: load what the first model call needs."""
        self._keep(self._warm(), "warm")

    @property
    def draining(self) -> bool:
        return self.around.worker.draining

    def stop_taking(self) -> None:
        """From now on new runs are refused and no further run begins."""
        self.around.worker.draining = True

    async def drain(self, seconds: float, hurry: asyncio.Event) -> None:
        """Let what executes end, for at most `seconds` or until `hurry`; hand over the rest; tell the streams."""
        self.stop_taking()
        ended = asyncio.create_task(self.around.lanes.settled(seconds))
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait({ended, hurried}, return_when=asyncio.FIRST_COMPLETED)
        for task in (ended, hurried):
            task.cancel()
        self.executor.let_all_go()
        slack_s = self.around.settings.tools.abort_drain_ms / 1000 + HAND_OVER_SLACK_S
        if not await self.around.lanes.settled(slack_s):
            log.error("drain.not-handed-over", executing=self.executor.executing)
            self.around.store.give_up()
        self.around.tail.close_streams()
        await self.streams.gone(STREAMS_LEAVE_S)

    async def close(self) -> None:
        """End every task, then the connections. What still executes goes on in the next process."""
        self.stop_taking()
        self.around.tail.close_streams()
        # A store that cannot be written must not hold up the end.
        bound = asyncio.get_running_loop().call_later(HAND_OVER_SLACK_S, self.around.store.give_up)
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        await self.around.lanes.close()
        await self.executor.close()
        if self.lease is not None:
            await self.lease.stop()
        try:
            await self.sweeper.end()
        except StoreClosed:
            log.error("store.not-written-to-the-end")
        bound.cancel()
        await self.around.providers.close()
        await self.around.store.close()

    async def _end_with_server(self) -> None:
        """Where the application is run by a server of somebody else's: when that is told to stop, streams end too."""
        await self.streams.closing.wait()
        self.stop_taking()
        self.around.tail.close_streams()

    async def _warm(self) -> None:
        try:
            await self.around.providers.warm()
        except Exception:
            log.exception("providers.warm-failed")

    def _keep(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._background.append(asyncio.create_task(work, name=f"laneway {name}"))
