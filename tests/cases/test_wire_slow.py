"""Readers that are slow or take nothing: bounded memory, nobody else waits, and the end reaches them all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import psutil
import pytest

from tests.kit.gauges import gauges, until_quiet
from tests.kit.model_server import Reply, done, finish, hold, text
from tests.kit.rules import check_case
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import Stream, check_stream
from tests.kit.story import behind

MEGABYTE = 1 << 20
CUT_AFTER_S = 300


def _flood(count: int) -> Reply:
    """So many deltas of eight characters, a write each."""
    return [text(*(f"{number:07d} " for number in range(count))), finish(), done()]


def _memory(one: Service) -> int:
    return int(psutil.Process(one.pid).memory_info().rss)


async def _stalled_and_normal(one: Service, deltas: int) -> tuple[str, Stream, int]:
    """A reader that takes nothing while another reads a flood to its end. The stalled one, and the memory before."""
    await one.ended(await one.run("x", "warm"))
    one.model.on("flood", _flood(deltas))
    before = _memory(one)
    run_id = await one.run("flood", "slow")
    stalled = await one.stream(run_id, receive_buffer=2048)
    normal = await one.stream(run_id)
    checked = check_stream(await normal.collect_until_done(CUT_AFTER_S))
    normal.close()
    assert len(checked.texts[0]) == 8 * deltas
    assert (await gauges(one))["open_streams"] >= 1, "the stalled reader is not open any more"
    return run_id, stalled, before


async def test_a_reader_that_takes_nothing_costs_no_memory_and_loses_nothing(service: ServiceFactory) -> None:
    """It is served from the log when it reads again. WIRE-06"""
    async with service() as one:
        run_id, stalled, before = await _stalled_and_normal(one, 20_000)
        grown = _memory(one) - before
        assert grown < 50 * MEGABYTE, f"{grown // MEGABYTE} MB more"
        stalled.widen()
        events = await stalled.collect_until_done(60)
        assert check_stream(events).outcome == "completed"
        assert await stalled.expect_end() == [] and stalled.violations == []
        stalled.close()
        await check_case(one, [run_id], sessions=["slow"])
        await until_quiet(one)


@pytest.mark.drill
@pytest.mark.timeout(400)
async def test_a_flood_of_200000_deltas_past_a_stalled_reader(service: ServiceFactory) -> None:
    """In the end the stalled one is cut, and can come back for all of it. WIRE-06, whole"""
    async with service() as one:
        run_id, stalled, before = await _stalled_and_normal(one, 200_000)
        grown = _memory(one) - before
        assert grown < 50 * MEGABYTE, f"{grown // MEGABYTE} MB more"
        await until_quiet(one, timeout_s=CUT_AFTER_S)
        assert "Traceback" not in one.log, one.log[-3000:]
        stalled.widen()
        events = await stalled.collect_until_done(60)
        assert stalled.truncated and stalled.violations == [] and events[-1].event != "done"
        cursor = int(stalled.last_id)
        async with await one.stream(run_id, last_event_id=cursor) as stream:
            rest = await stream.collect_until_done(CUT_AFTER_S)
        check_stream([*behind(events, 0), *rest])
        assert check_stream(rest, after=cursor).outcome == "completed"
        await check_case(one, [run_id], sessions=["slow"])


async def test_many_slow_readers_slow_no_other(service: ServiceFactory) -> None:
    """Twenty that read a byte now and then; a normal reader and the run itself go on beside them."""
    async with service() as one:
        one.model.on("flood", _flood(5000))
        run_id = await one.run("flood", "slow-many")
        slow = [await one.stream(run_id, receive_buffer=2048) for _ in range(20)]
        reading = [asyncio.create_task(stream.next_event(60)) for stream in slow]
        normal = await one.stream(run_id)
        whole = await normal.collect_until_done(60)
        assert (await one.record(run_id))["status"] == "succeeded", "the run waited for its readers"
        await asyncio.gather(*reading)
        for stream in slow:
            stream.widen()
            events = await stream.collect_until_done(60)
            assert [event.raw for event in behind(events, 0)] == [event.raw for event in behind(whole, 0)]
            stream.close()
        normal.close()
        await check_case(one, [run_id], sessions=["slow-many"])


async def test_heartbeats_stand_between_large_events_and_never_in_them(service: ServiceFactory) -> None:
    """One each 100 ms, events of megabytes, a slow reader: every block parses, and there are no comments. WIRE-10"""
    settings = {"events.heartbeat_seconds": 0.1, "limits.event_bytes": 16_777_216}
    async with service(settings) as one:
        large = ["x" * 5_000_000, "\n" * 2_000_000]
        steps = [step for n, words in enumerate(large) for step in (text(words), hold(f"large-{n}"))]
        one.model.on("large-events", [*steps, finish(), done()])
        run_id = await one.run("large-events", "large")
        streams = [await one.stream(run_id, receive_buffer=65_536) for _ in range(3)]
        end = 0
        for number, words in enumerate(large):
            end += len(words)
            for stream in streams:
                await stream.until(lambda event, end=end: _end(event.payload) == end, 60)
                cursor = stream.last_id
                for _ in range(3):
                    beat = await stream.next_event(60)
                    assert (beat.event, beat.id, beat.retry) == ("heartbeat", cursor, None)
            one.model.release(f"large-{number}")
        for stream in streams:
            events = await stream.collect_until_done(60)
            assert stream.violations == [] and await stream.expect_end() == []
            assert check_stream(events).texts == ["".join(large)]
            stream.close()
        await check_case(one, [run_id], sessions=["large"])


def _end(payload: dict[str, Any]) -> int:
    """Where the text stands behind this delta."""
    return int(payload.get("offset", 0)) + len(payload.get("delta", ""))


async def test_heartbeats_move_the_cursor_past_what_is_filtered(service: ServiceFactory) -> None:
    """A reader of a selection goes on behind them and misses nothing of it."""
    async with service({"events.heartbeat_seconds": 0.1}) as one:
        one.model.on("filtered-beats", [text("one "), hold("beats"), text("two"), finish(), done()])
        run_id = await one.run("filtered-beats", "beats")
        all_of_it = await one.stream(run_id)
        delta = await all_of_it.until(lambda event: event.payload.get("delta") == "one ")
        stream = await one.stream(run_id, streams="lifecycle")
        beat = await stream.until(lambda event: event.event == "heartbeat")
        while beat.id != delta.id:
            beat = await stream.until(lambda event: event.event == "heartbeat")
        silent = [await stream.next_event() for _ in range(3)]
        assert {(event.event, event.id) for event in silent} == {("heartbeat", delta.id)}
        stream.close()
        one.model.release("beats")
        async with await one.stream(run_id, last_event_id=beat.id, streams="lifecycle") as rest:
            phases = [event.phase for event in await rest.collect_until_done()]
        assert phases == [None, "end", None]
        await all_of_it.collect_until_done()
        all_of_it.close()
        await check_case(one, [run_id], sessions=["beats"])
