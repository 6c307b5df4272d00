"""A client that reconnects by the rules of a browser's `EventSource`, and knows none of ours, comes to rest."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.kit.client import API
from tests.kit.gauges import until
from tests.kit.model_server import done, finish, hold, text
from tests.kit.rules import check_case
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import Event, Stream, StreamCut, check_stream

RETRY_S_MAX = 0.1


@dataclass
class EventSource:
    """Connects again after `retry` with its last id whenever the connection ends; gives up on any answer but 200.

    `done` means nothing to it. The pause is cut short for tests. `answers` are the statuses it got.
    """

    url: str
    events: list[Event] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    retries: list[int] = field(default_factory=list)
    last_id: str = ""
    stream: Stream | None = None

    def saw(self, word: str) -> bool:
        return any(word in event.payload.get("delta", "") for event in self.events)

    async def run(self) -> None:
        """Until it gives up for good."""
        retry_s = 3.0
        while True:
            resumed = {"last-event-id": self.last_id} if self.last_id else {}
            try:
                self.stream = await Stream.open(
                    self.url, headers={**resumed, "cache-control": "no-cache"}, described=True
                )
            except OSError:
                await asyncio.sleep(min(retry_s, RETRY_S_MAX))
                continue
            self.answers.append(self.stream.status)
            if self.stream.status != 200:
                self.stream.close()
                return
            assert self.stream.headers["content-type"].split(";")[0] == "text/event-stream"
            try:
                while True:
                    event = await self.stream.next_event(60)
                    self.events.append(event)
                    self.last_id = event.last_id
                    if event.retry is not None:
                        self.retries.append(event.retry)
                        retry_s = event.retry / 1000
            except (StreamCut, OSError):
                self.stream.close()
            await asyncio.sleep(min(retry_s, RETRY_S_MAX))


def _url(one: Service, run_id: str, rest: str = "") -> str:
    return f"{one.address}{API}/runs/{run_id}/events{rest}"


@pytest.mark.parametrize("rest", ["", "?format=message", "?streams=lifecycle", "?streams=tool", "?after=start"])
async def test_a_browser_stops_behind_the_end(shared_service: Service, rest: str) -> None:
    """One more request, answered 204; nothing twice. RESUME-07"""
    one = shared_service
    run_id = await one.run("a run for a browser", "browser")
    await one.ended(run_id)
    browser = EventSource(_url(one, run_id, rest))
    await asyncio.wait_for(browser.run(), 60)
    assert browser.answers == [200, 204]
    assert [event.stream for event in browser.events].count("done") == 1
    numbers = Counter(event.seq for event in browser.events if event.seq is not None)
    assert not [number for number, count in numbers.items() if count > 1]
    assert all(1000 <= retry <= 3000 for retry in browser.retries) and browser.retries
    check_stream(browser.events, filtered="streams" in rest, ended=False)


async def test_browsers_that_lose_a_live_run_come_back_and_stop(service: ServiceFactory) -> None:
    """Through a lost connection, a clean restart and a killed process, each event once, then one 204."""
    async with service() as one:
        words = ["one ", "two ", "three ", "four"]
        steps = [step for n, word in enumerate(words[:3]) for step in (text(word), hold(f"step-{n}"))]
        one.model.on("browse-this", [*steps, text(words[3]), finish(), done()])
        run_id = await one.run("browse-this", "browser-live")
        browsers = [EventSource(_url(one, run_id)) for _ in range(5)]
        running = [asyncio.create_task(browser.run()) for browser in browsers]

        async def all_saw(word: str) -> None:
            await until(lambda: all(browser.saw(word) for browser in browsers), f"every browser saw {word!r}", 60)

        await all_saw("one ")
        for browser in browsers:
            assert browser.stream is not None
            browser.stream.abort()
        one.model.release("step-0")
        await all_saw("two ")
        await one.restart(hard=True)
        one.model.release("step-1")
        await all_saw("three ")
        one.model.release("step-2")
        await asyncio.wait_for(asyncio.gather(*running), 60)
        for browser in browsers:
            assert browser.answers[-1] == 204 and set(browser.answers[:-1]) == {200}, browser.answers
            assert [event.stream for event in browser.events].count("done") == 1
            assert check_stream(browser.events).texts == ["".join(words)]
        await check_case(one, [run_id], sessions=["browser-live"])


async def test_retries_are_drawn_at_random(shared_service: Service) -> None:
    """Browsers come back after exactly that: all at once, were it always the same."""
    run_id = await shared_service.run("x", "browser-retries")
    await shared_service.ended(run_id)
    retries = set()
    for _ in range(20):
        async with await shared_service.stream(run_id) as stream:
            first = (await stream.collect_until_done())[0]
        assert first.retry is not None and 1000 <= first.retry <= 3000
        retries.add(first.retry)
    assert len(retries) > 10, retries
