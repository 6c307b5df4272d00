"""Readers that are slow or take nothing: bounded memory, nobody else waits, and the end reaches them all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import psutil
import pytest

from tests.kit.gauges import gauges, until_quiet
from tests.kit.model_server import done, finish, hold, text
from tests.kit.rules import check_case
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import Event, Stream, check_stream

MEGABYTE = 1 << 20
CUT_AFTER_S = 300
PROBED_WITHIN_S = 240
"""A kernel asks a peer whose window was shut whether it takes more only every two minutes in the end."""


def _memory(one: Service) -> int:
    return int(psutil.Process(one.pid).memory_info().rss)


async def _read_past(one: Service, message: str, session: str, stalled: int) -> tuple[str, list[Stream]]:
    """A run read to its end by one reader while so many take nothing, and so many more that come behind its end.

    They stay open; the run does not wait.
    """
    run_id = await one.run(message, session)
    opened = [await one.stream(run_id, receive_buffer=2048) for _ in range(stalled)]
    async with await one.stream(run_id) as normal:
        checked = check_stream(await normal.collect_until_done(60))
    assert checked.outcome == "completed" and (await one.record(run_id))["status"] == "succeeded"
    opened += [await one.stream(run_id, receive_buffer=2048) for _ in range(stalled)]
    await until_quiet(one, open_streams=2 * stalled, store_active_reads=0)
    return run_id, opened


async def test_readers_that_take_nothing_cost_no_memory_and_lose_nothing(service: ServiceFactory) -> None:
    """Each far more behind than any buffer; when they read again they are served from the log. WIRE-06"""
    async with service() as one:
        one.model.on("a flood", [text(*["0123456789abcdef" * 6000] * 100), finish(), done()])
        await _read_past(one, "a flood", "warm", stalled=0)
        before = _memory(one)
        run_id, stalled = await _read_past(one, "a flood", "slow", stalled=6)
        assert (await gauges(one))["open_streams"] == 12, "all was in the buffers of the kernel; tell more"
        grown = _memory(one) - before
        assert grown < 150 * MEGABYTE, f"{grown // MEGABYTE} MB more; what they wait for is 220 MB"
        for stream in (stalled[0], stalled[-1]):
            stream.widen()
            assert check_stream(await stream.collect_until_done(60)).outcome == "completed"
            assert await stream.expect_end() == [] and stream.violations == []
        for stream in stalled:
            stream.close()
        await check_case(one, [run_id], sessions=["slow"])
        await until_quiet(one)


@pytest.mark.drill
@pytest.mark.timeout(1200)
async def test_floods_of_200000_deltas_past_stalled_readers(service: ServiceFactory) -> None:
    """Ten runs at once; in the end the stalled ones are cut, and can come back for all the rest. WIRE-06, whole"""
    async with service() as one:
        one.model.on("paced", [text(*(f"{n:07d} " * 20 for n in range(20_000)), delay_s=0.0005), finish(), done()])
        run_ids = [await one.run(f"paced {number}", f"paced-{number}") for number in range(10)]
        stalled = [await one.stream(run_id, receive_buffer=2048) for run_id in run_ids]
        normal = [await one.stream(run_id) for run_id in run_ids]
        for events in await asyncio.gather(*(stream.collect_until_done(CUT_AFTER_S) for stream in normal)):
            assert check_stream(events).outcome == "completed"
        await until_quiet(one, timeout_s=CUT_AFTER_S)
        assert "Traceback" not in one.log, one.log[-3000:]
        for stream in stalled:
            stream.widen()
        taken = await asyncio.gather(*(stream.collect_until_done(PROBED_WITHIN_S) for stream in stalled))
        for run_id, stream, told in zip(run_ids, stalled, taken, strict=True):
            rest: list[Event] = []
            if stream.truncated:
                assert stream.violations == [] and told[-1].event != "done"
                async with await one.stream(run_id, last_event_id=stream.last_id) as again:
                    rest = await again.collect_until_done(CUT_AFTER_S)
            assert check_stream([*told, *rest]).outcome == "completed"
        assert any(stream.truncated for stream in stalled), "none was cut; tell more"
        await check_case(one, run_ids, sessions=["paced-0"])


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
            told = await rest.collect_until_done()
        phases = [event.phase for event in told if event.event != "heartbeat"]
        assert phases == [None, "end", None]
        await all_of_it.collect_until_done()
        all_of_it.close()
        await check_case(one, [run_id], sessions=["beats"])
