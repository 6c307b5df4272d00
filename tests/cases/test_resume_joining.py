"""Readers that come at any time with any cursor: each gets everything behind it once, in order, and the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from tests.kit.follower import Follower
from tests.kit.gauges import until_quiet
from tests.kit.model_server import Reply, Request, done, finish, hold, text
from tests.kit.rules import check_case
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import Event, check_stream
from tests.kit.story import behind, story

SLACK_S = 90.0


@pytest.fixture(autouse=True)
async def _comes_to_rest(shared_service: Service) -> AsyncIterator[None]:
    """Whatever a test did, no stream is left open and nothing executes (rule R7)."""
    yield
    await until_quiet(shared_service)


def _words(count: int) -> list[str]:
    return [f"w{number} " for number in range(count)]


def _streaming(count: int) -> Reply:
    """So many deltas, one a millisecond."""
    return [text(*_words(count), delay_s=0.001), finish(), done()]


async def _joins_at_random(one: Service, readers: int, deltas: int, seed: int) -> None:
    """Readers that wait for a random number to be told, and then come with a random cursor up to it."""
    chance, session = random.Random(seed), f"joining-{seed}"
    one.model.on(f"stream {seed}", _streaming(deltas))
    whole_text = "".join(_words(deltas))
    run_id = await one.run(f"stream {seed}", session)
    guide = one.follow(run_id).start()

    async def join() -> None:
        at = chance.randint(0, len(whole_text) - 1)
        await guide.until(
            lambda event: event.payload.get("offset", -1) + len(event.payload.get("delta", "")) > at, SLACK_S
        )
        told = max(event.seq for event in guide.events if event.seq is not None)
        cursor = chance.choice((0, told, chance.randint(0, told), max(0, told - 3)))
        by_header = chance.random() < 0.5
        query = {"last_event_id": cursor} if by_header else {"after": cursor}
        async with await one.stream(run_id, **query) as stream:
            events = await stream.collect_until_done(SLACK_S)
            assert await stream.expect_end() == [] and stream.violations == []
        check_stream(events, after=cursor)
        seen[cursor] = behind(events, 0)

    seen: dict[int, list[Event]] = {}
    await asyncio.gather(*(join() for _ in range(readers)))
    whole = await guide.finish(SLACK_S)
    assert guide.connections == 1
    checked = check_stream(whole)
    assert checked.texts == [whole_text]
    for cursor, events in seen.items():
        expected = behind(whole, cursor)
        assert story(events) == story(expected), f"from {cursor}"
        if not any("firstSeq" in event.data for event in events):  # a reader that came late finds the run folded
            assert [event.raw for event in events] == [event.raw for event in expected], f"from {cursor}"
    await check_case(one, [run_id], sessions=[session])


async def test_readers_that_join_at_random_miss_and_repeat_nothing(shared_service: Service) -> None:
    """RESUME-02"""
    await _joins_at_random(shared_service, readers=30, deltas=700, seed=1)


@pytest.mark.drill
@pytest.mark.parametrize("seed", [11, 12])
async def test_two_hundred_readers_join_at_random(service: ServiceFactory, seed: int) -> None:
    """RESUME-02, whole"""
    async with service({"limits.streams_per_principal": 300}) as one:
        await _joins_at_random(one, readers=200, deltas=2000, seed=seed)
        await until_quiet(one)


async def test_readers_that_lose_their_connection_again_and_again_miss_nothing(shared_service: Service) -> None:
    """Each drops at random and comes back with its last id; joined, the pieces are the whole. ABORT-09, RESUME-02"""
    one, chance = shared_service, random.Random(5)
    words = _words(400)
    one.model.on("stream-with-drops", [text(*words, delay_s=0.002), hold("last-drop"), finish(), done()])
    run_id = await one.run("stream-with-drops", "droppers")
    followers = [_quick(one, run_id).start() for _ in range(10)]

    async def drop_often(follower: Follower) -> None:
        for drop in range(8):
            part = len(words) * (drop + chance.random()) / 9
            await follower.until(lambda event, part=part: f"w{int(part)} " in event.payload.get("delta", ""), SLACK_S)
            follower.drop()

    await asyncio.gather(*(drop_often(follower) for follower in followers))
    one.model.release("last-drop")
    for follower in followers:
        events = await follower.finish(SLACK_S)
        assert follower.violations == [] and follower.connections > 1
        assert check_stream(events).texts == ["".join(words)]
    await check_case(one, [run_id], sessions=["droppers"])


def _quick(one: Service, run_id: str) -> Follower:
    return Follower(lambda: f"{one.address}/api/v1/runs/{run_id}/events", retry_limit_s=0.01, described=True)


async def test_the_start_and_the_tail_are_cursors(shared_service: Service) -> None:
    """`start` is no cursor at all, `tail` is where the run stands now; both by header and by parameter."""
    one = shared_service

    def held(_: Request) -> Reply:
        return [text("before "), hold("tail"), text("after"), finish(), done()]

    one.model.on("start-and-tail", held)
    run_id = await one.run("start-and-tail", "cursor-words")
    guide = await one.stream(run_id)
    await guide.until(lambda event: event.payload.get("delta") == "before ")
    record = await one.record(run_id)
    streams = {
        (word, how): await one.stream(run_id, **{how: word})
        for word in ("start", "tail")
        for how in ("after", "last_event_id")
    }
    opened = {place: await stream.next_event() for place, stream in streams.items()}
    one.model.release("tail")
    whole = behind(await guide.collect_until_done(), 0)
    for (word, how), stream in streams.items():
        ready = opened[word, how]
        assert ready.event == "ready" and ready.payload["cursor"] == ready.id
        cursor = int(ready.id or "-1")
        assert cursor == 0 if word == "start" else record["lastSeq"] <= cursor <= (guide.events[-1].seq or 10**9)
        events = await stream.collect_until_done()
        check_stream(events, after=cursor)
        assert [event.raw for event in behind(events, 0)] == [event.raw for event in whole if (event.seq or 0) > cursor]
    await check_case(one, [run_id], sessions=["cursor-words"])
    async with await one.stream(run_id, after="tail") as stream:
        assert [event.event for event in await stream.collect_until_done()] == ["ready", "done"]
