"""`Follower`: follows a run (or a session) to its end across lost connections, as a careful browser client does.

A stream that ends without `done` is opened again after its `retry` with `Last-Event-ID`; any answer but 200 is
answered by a fresh open with `?after=` after a growing pause; 204 and `done` are the end. Waits are capped for tests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self
from urllib.parse import quote

from tests.kit.sse_parser import Event
from tests.kit.stream import Stream, StreamCut

HEARTBEATS_MISSED_S = 45.0


class Follower:
    """`where` gives the stream's URL without cursor each time it is opened, so that a service may come back elsewhere.

    `events` is everything from all connections in order; `ended_by` is "done" or "204" once it is over; `statuses`
    lists the answers (0: no connection); `violations` what the strict parser found. `described`: as for a `Stream`.
    """

    def __init__(  # noqa: PLR0913
        self,
        where: Callable[[], str],
        *,
        headers: Mapping[str, str] | None = None,
        after: str = "",
        retry_limit_s: float = 0.2,
        backoff_first_s: float = 0.05,
        backoff_limit_s: float = 1.0,
        silence_limit_s: float = HEARTBEATS_MISSED_S,
        described: bool = False,
    ) -> None:
        self.events: list[Event] = []
        self.statuses: list[int] = []
        self.violations: list[str] = []
        self.last = after
        self.ended_by = ""
        self.stream: Stream | None = None
        self._where = where
        self._headers = dict(headers or {})
        self._retry_limit_s = retry_limit_s
        self._retry_s = retry_limit_s
        self._backoff_first_s = backoff_first_s
        self._backoff_limit_s = backoff_limit_s
        self._silence_limit_s = silence_limit_s
        self._described = described
        self._task: asyncio.Task[None] | None = None

    def start(self) -> Self:
        """Follow in the background, from now on."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._follow())
        return self

    async def finish(self, timeout_s: float = 30.0) -> list[Event]:
        """Follow to the end; all events. TimeoutError tells how far it came."""
        task = self.start()._task
        assert task is not None
        try:
            async with asyncio.timeout(timeout_s):
                await task
        except TimeoutError:
            raise TimeoutError(
                f"not at the end within {timeout_s} s: {len(self.events)} events, last id {self.last!r}, "
                f"answers {self.statuses[-10:]}"
            ) from None
        return self.events

    async def until(self, condition: Callable[[Event], bool], timeout_s: float = 10.0) -> Event:
        """Follow on to an event that fits, also one that has come already."""
        task = self.start()._task
        assert task is not None
        seen = 0
        async with asyncio.timeout(timeout_s):
            while True:
                while seen < len(self.events):
                    if condition(self.events[seen]):
                        return self.events[seen]
                    seen += 1
                if task.done():
                    task.result()
                await asyncio.sleep(0.002)

    async def stop(self) -> None:
        """Leave. What the service did wrong meanwhile is raised."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.stream is not None:
            self.stream.close()
        if self._task is not None and not self._task.cancelled():
            self._task.result()

    def drop(self) -> None:
        """Lose the connection, as a bad network does; it comes back by itself."""
        if self.stream is not None:
            self.stream.abort()

    @property
    def connections(self) -> int:
        """How often it was opened."""
        return len(self.statuses)

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _follow(self) -> None:
        misses, opened_after = 0, self.last
        while not self.ended_by:
            status = await self._connect(opened_after)
            if self.ended_by:
                return
            if status == 200:
                misses = 0
                await asyncio.sleep(self._retry_s)
                continue
            misses += 1
            pause = min(self._backoff_limit_s, self._backoff_first_s * 2 ** (misses - 1))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            opened_after = self.last

    async def _connect(self, opened_after: str) -> int:
        """One connection to its end; its status, 0 when there was none."""
        try:
            url = self._where()
            if opened_after:
                url += ("&" if "?" in url else "?") + "after=" + quote(opened_after, safe="")
            resumed = {"last-event-id": self.last} if self.last != opened_after else {}
            stream = self.stream = await Stream.open(
                url, headers={**self._headers, **resumed}, described=self._described
            )
        except (OSError, TimeoutError):
            self.statuses.append(0)
            return 0
        self.statuses.append(stream.status)
        try:
            if stream.status == 204:
                self.ended_by = "204"
            elif stream.status == 200:
                await self._take_all(stream)
        finally:
            self.violations += stream.violations
            stream.close()
        return stream.status

    async def _take_all(self, stream: Stream) -> None:
        while True:
            try:
                event = await stream.next_event(self._silence_limit_s)
            except (StreamCut, TimeoutError, OSError):
                return
            self.events.append(event)
            self.last = event.last_id or self.last
            if event.retry is not None:
                self._retry_s = min(self._retry_limit_s, event.retry / 1000)
            if event.stream == "done":
                self.ended_by = "done"
                return
