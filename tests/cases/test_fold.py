"""After the end a run becomes few rows, and no client can tell: every cursor goes on to the same story."""

from __future__ import annotations

import random

from tests.kit.gauges import folded
from tests.kit.invariants import check_invariants
from tests.kit.model_server import ModelServer, done, finish, reply_calls, reply_text, text, thinking
from tests.kit.rules import check_case
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import Event, check_stream
from tests.kit.story import Line, story


def told(events: list[Event]) -> list[Line]:
    """The story without what was taken back: of that only the resets are left, of which there may be more."""
    gone = {event.payload["messageId"] for event in events if event.phase == "reset"}
    return story(event for event in events if event.payload.get("messageId") not in gone or event.stream == "lifecycle")


async def read(one: Service, run_id: str, after: int) -> list[Event]:
    async with await one.stream(run_id, after=after) as stream:
        return await stream.collect_until_done()


async def test_every_cursor_of_a_folded_run_goes_on_to_the_same_story(
    service: ServiceFactory, model: ModelServer
) -> None:
    """INV-10 from outside: an answer with thinking, a tool, and an empty answer that was taken back, over a restart."""
    said = [f"{n}é😀 " for n in range(300)]
    first = [thinking("hm ", "well ", delay_s=0.01), text(*said[:100], delay_s=0.002), *reply_calls(("c", "list", {}))]
    blank = [text(*"     ", delay_s=0.02), finish(), done()]
    model.on("tell me", first, blank, [text(*said, delay_s=0.002), finish(), done()])
    async with service() as one:
        run_id = await one.run("tell me [s:a]", "a", reasoning="stream")
        live = await one.follow(run_id).start().finish()
        whole = told(live)
        assert any(event.phase == "reset" for event in live), "something was taken back"
        rows = one.query("SELECT count(*) AS n FROM run_event WHERE run_id = ?", run_id)[0]["n"]
        await folded(one, run_id)
        kept = one.query("SELECT count(*) AS n FROM run_event WHERE run_id = ?", run_id)[0]["n"]
        assert kept < 25 < rows, (kept, rows)
        numbers = [event.seq for event in live if event.seq is not None]
        chance = random.Random(5)
        for _ in range(2):
            for cursor in [0, 1, *chance.sample(numbers[:-1], 40)]:
                before = [event for event in live if event.seq is not None and event.seq <= cursor]
                after = await read(one, run_id, cursor)
                check_stream(after, after=cursor)
                assert told([*before, *after]) == whole, f"from {cursor}"
            await one.restart()
        await check_case(one, [run_id], sessions=["a"])


async def test_a_folded_run_reads_as_it_did_wherever_its_texts_are_kept(
    service: ServiceFactory, model: ModelServer
) -> None:
    """Record, list, wait, snapshot and stream of long messages, which are kept in the transcript alone."""
    asked = "please say it at length [s:a] " + "in many words, é😀, " * 100
    said = "a long answer é😀 " * 300
    model.on("please say it", [text(*[said[at : at + 60] for at in range(0, len(said), 60)]), finish(), done()])

    async def views(one: Service) -> list[object]:
        listed = await one.get("/api/v1/runs")
        async with await one.stream(run_id, after="999999") as stream:
            snapshot = next(event for event in await stream.collect_until_done() if event.event == "snapshot")
        ended = await one.get(f"/api/v1/runs/{run_id}/wait")
        record = await one.get(f"/api/v1/runs/{run_id}")
        page = await one.get(f"/api/v1/sessions/{record['sessionKey']}/transcript")
        return [record, listed, ended, snapshot.payload, page]

    async with service() as one:
        run_id = await one.run(asked, "a", metadata={"mine": asked})
        await one.ended(run_id)
        before, told_before = await views(one), await read(one, run_id, 0)
        await folded(one, run_id)
        assert said not in str(one.query("SELECT payload FROM run_event WHERE run_id = ?", run_id))
        for _ in range(2):
            assert await views(one) == before
            assert told(await read(one, run_id, 0)) == told(told_before)
            await one.restart()
        await check_case(one, [run_id], sessions=["a"])


async def test_runs_of_a_killed_service_are_folded_too(service: ServiceFactory, model: ModelServer) -> None:
    """A fold that was cut off goes on; nothing is lost by it. CP-27"""
    model.default(reply_text("many words of an answer " * 20, deltas=200))
    one = service()
    await one.up("CP-27=kill@2")
    runs = [await one.run(f"x {number} [s:{number}]", f"s-{number}") for number in range(6)]
    await one.until_exit()
    await one.up()
    for run_id in runs:
        assert (await one.ended(run_id))["status"] == "succeeded"
    await folded(one, *runs)
    await check_case(one, runs)


async def test_a_cursor_whose_events_are_gone_is_told_so_and_gets_what_there_is(
    service: ServiceFactory, model: ModelServer
) -> None:
    """RESUME-08: first a gap, then everything that is kept; the transcript has it all."""
    calls = [reply_calls((f"c{n}", "list", {}), words=f"round {n} ") for n in range(8)]
    model.on("many rounds", *calls, [text(*"all done", delay_s=0.01), finish(), done()])
    async with service({"retention.events_per_run": 5}) as one:
        run_id = await one.run("many rounds [s:a]", "a")
        live = await one.follow(run_id).start().finish()
        await folded(one, run_id)
        assert one.query("SELECT count(*) AS n FROM run_event WHERE run_id = ?", run_id)[0]["n"] == 5
        last = max(event.seq for event in live if event.seq is not None)
        first = one.query("SELECT seq_first FROM run WHERE id = ?", run_id)[0]["seq_first"]
        for cursor in (0, 10, first - 2):
            events = await read(one, run_id, cursor)
            assert [event.event for event in events] == ["ready", "gap", "snapshot", "done"]
            assert events[1].payload == {"reason": "trimmed", "oldestSeq": first}
            [run] = events[2].payload["runs"]
            assert run["status"] == "succeeded" and run["input"]["parts"][0]["text"] == "many rounds [s:a]"
            assert [item["text"] for item in run["messages"]] == [*(f"round {n} " for n in range(8)), "all done"]
            assert events[2].id == str(last) and events[3].id == str(last + 1)
        kept = await read(one, run_id, first - 1)
        check_stream(kept, after=first - 1)
        assert told([event for event in live if (event.seq or 0) >= first]) == told(kept)
        assert len(await one.transcript("a", limit=200)) == 18
        check_invariants(one, accepted=[run_id])


async def test_a_reader_whose_next_events_go_away_under_it_is_told_so(
    service: ServiceFactory, model: ModelServer
) -> None:
    """It stands in the middle, slowly, while the run ends and is trimmed."""
    long = [f"{n:09} " * 2_000 for n in range(500)]
    model.on("long run", [text(*long, delay_s=0.002), finish(), done()])
    async with service({"retention.events_per_run": 3}) as one:
        run_id = await one.run("long run [s:a]", "a")
        await one.ended(run_id, 60_000)
        async with await one.stream(run_id, receive_buffer=65_536) as stream:
            await stream.next_event()
            await folded(one, run_id)
            events = await stream.collect_until_done()
        names = [event.event for event in events]
        assert names[-3:] == ["gap", "snapshot", "done"] and "snapshot" not in names[:-3]
        [message] = events[-2].payload["runs"][0]["messages"]
        assert message["text"] == "".join(long)
