"""Coming back to a run: what was missed comes once and in order, and a run that has ended says so at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.kit.gauges import until_quiet
from tests.kit.model_server import ModelServer, error, finish, hold, pause, reply_calls, reply_text, text, thinking
from tests.kit.model_server import done as end_mark
from tests.kit.rules import check_case, transcript_text
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import Event, check_stream
from tests.kit.story import behind, same_rest, story


@pytest.fixture(autouse=True)
async def _comes_to_rest(shared_service: Service) -> AsyncIterator[None]:
    """Whatever a test did, no stream is left open and nothing executes (rule R7)."""
    yield
    await until_quiet(shared_service)


def _is(stream: str, phase: str | None = None) -> object:
    return lambda event: event.stream == stream and (phase is None or event.phase == phase)


async def _read(one: Service, run_id: str, after: int | None = None, **query: object) -> list[Event]:
    """The stream to its end; it has to close by itself behind `done`."""
    async with await one.stream(run_id, last_event_id=after, **query) as stream:
        assert stream.status == 200, stream.status
        events = await stream.collect_until_done()
        assert await stream.expect_end() == [] and stream.finished
        assert stream.violations == []
    return events


async def _ended_runs(one: Service, session: str) -> dict[str, str]:
    """One run for each way to end, by status."""
    model = one.model
    model.on("fail", error(400, "no"))
    model.on("with-tools", reply_calls(("c1", "nosuch", {"a": 1}), words="before "), reply_text("after the call"))
    model.on("stop-me", [text("half of"), hold("never")])
    model.on("too-long", [text("what came"), hold("never")])
    runs = {"failed": await one.run("fail", session), "succeeded": await one.run("plain words", session)}
    runs["with tools"] = await one.run("with-tools", session)
    runs["timed_out"] = await one.run("too-long", session, timeoutSeconds=0.2)
    runs["cancelled"] = await one.run("stop-me", session)
    runs["withdrawn"] = await one.run("waits behind it", session)
    async with await one.stream(runs["cancelled"]) as stream:
        await stream.until(_is("assistant"), 30)
    await one.abort_session(session)
    for run_id in runs.values():
        await one.ended(run_id)
    return runs


async def test_an_ended_run_is_told_to_its_end_from_any_cursor_also_after_restarts(service: ServiceFactory) -> None:
    """From no id, each middle one and the last one; behind the end 204, which stops a browser. RESUME-01"""
    async with service() as one:
        runs = await _ended_runs(one, "ended")
        first: dict[str, list[Event]] = {}
        for hard in (None, False, True):
            if hard is not None:
                await one.restart(hard=hard)
            for name, run_id in runs.items():
                whole = await _read(one, run_id)
                checked = check_stream(whole)
                assert story(whole) == story(first.setdefault(name, whole)), f"{name} is told another way"
                last = (await one.record(run_id))["lastSeq"]
                assert checked.terminal is not None and checked.terminal.seq == last
                for after in range(1, last + 1):
                    events = await _read(one, run_id, after)
                    check_stream(events, after=after)
                    assert same_rest(whole, events, after), f"{name} after {after}"
                    assert events[-1].payload == whole[-1].payload == await one.wait(run_id)
                for query in ({"last_event_id": last + 1}, {"after": last + 1}):
                    async with await one.stream(run_id, **query) as stream:
                        assert stream.status == 204 and await stream.body() == b""
        assert sorted({(await one.record(run_id))["status"] for run_id in runs.values()}) == [
            "cancelled", "failed", "succeeded", "timed_out",
        ]  # fmt: skip
        await check_case(one, runs.values(), sessions=["ended"])


async def test_readers_do_not_take_events_from_each_other(shared_service: Service) -> None:
    """Three from the start, one late, one by the post itself, all the same to the end. RESUME-03"""
    one = shared_service
    halves = [text(*"the-first-half ", delay_s=0.001), hold("half"), text(*"and-the-second", delay_s=0.001)]
    one.model.on("for-all-readers", [*halves, finish(), end_mark()])
    posting = await one.post_stream("for-all-readers", "readers")
    run_id = str((await posting.next_event()).payload["runId"])
    early = [await one.stream(run_id) for _ in range(3)]
    readers = [asyncio.create_task(stream.collect_until_done()) for stream in (*early, posting)]
    await one.model.until_held("half")
    late = await one.stream(run_id)
    await late.until(lambda event: event.payload.get("delta", "").endswith(" "))
    one.model.release("half")
    told = [*await asyncio.gather(*readers), await late.collect_until_done()]
    raw = [[event.raw for event in behind(events, 0)] for events in told]
    assert all(lines == raw[0] for lines in raw[1:]), "readers saw different events"
    for stream in (*early, posting, late):
        assert await stream.expect_end() == [] and stream.violations == []
    assert check_stream(told[0]).texts == ["the-first-half and-the-second"]
    await check_case(one, [run_id], sessions=["readers"])


async def test_every_cursor_of_a_live_run_goes_on_without_gap_or_repeat(shared_service: Service) -> None:
    """Readers that come back at each number while the run is held, and go on with it to the end."""
    one = shared_service
    words = [f"{number} " for number in range(30)]
    one.model.on("resume-everywhere", [text(*words), hold("everywhere"), text(*words), finish(), end_mark()])
    run_id = await one.run("resume-everywhere", "resume-live")
    first = await one.stream(run_id)
    await first.until(lambda event: event.payload.get("delta", "").endswith("29 "))
    place = first.events[-1].seq or 0
    opened = [await one.stream(run_id, last_event_id=cursor) for cursor in range(place + 1)]
    for stream in opened[:-1]:
        await stream.until(lambda event: event.seq == place)
    readers = [asyncio.create_task(stream.collect_until_done()) for stream in (first, *opened)]
    one.model.release("everywhere")
    whole, *resumed = await asyncio.gather(*readers)
    check_stream(whole)
    for cursor, events in enumerate(resumed):
        assert (events[0].event, events[0].id) == ("ready", str(cursor))
        check_stream(events, after=cursor)
        assert [event.raw for event in behind(events, 0)] == [event.raw for event in behind(whole, cursor)]
    await check_case(one, [run_id], sessions=["resume-live"])


async def test_text_before_a_tool_is_told_before_it(shared_service: Service) -> None:
    """Nothing is held back over a tool event; text, tool, text keep their order, also on replay. RESUME-05"""
    one, session = shared_service, "text-and-tools"
    parts = ["".join(f"{part}.{number} " for number in range(40)) for part in "abc"]
    calls = [reply_calls((f"call-{n}", "nosuch", {"n": n}))[1:] for n in range(2)]
    replies = [[text(*parts[n].split(" ")), *calls[n]] for n in range(2)]
    one.model.on("talk-and-call", *replies, reply_text(parts[2], deltas=40))
    async with await one.post_stream("talk-and-call", session) as stream:
        live = await stream.collect_until_done()
    run_id = str(live[0].payload["runId"])
    items = [item for item in await one.transcript(session) if item["role"] == "assistant"]
    stored = [transcript_text(item) for item in items]
    assert stored == [parts[0].replace(" ", ""), parts[1].replace(" ", ""), parts[2]]
    for events in (live, await _read(one, run_id)):
        told, before_tool = "", []
        for event in events:
            told += event.payload.get("delta", "") if event.stream == "assistant" else ""
            if event.stream == "tool" and event.phase == "requested":
                before_tool.append(told)
                told = ""
        assert [*before_tool, told] == stored
        kinds = [event.stream for event in events if event.stream in ("assistant", "tool")]
        runs_of_kinds = [kind for n, kind in enumerate(kinds) if n == 0 or kinds[n - 1] != kind]
        assert runs_of_kinds == ["assistant", "tool", "assistant", "tool", "assistant"]
    await check_case(one, [run_id], sessions=[session])


async def test_thinking_and_text_keep_their_order(shared_service: Service) -> None:
    """Both streams are numbered together; each has its own offsets and its own end."""
    one, session = shared_service, "thinking-order"
    thought, said = [f"t{n} " for n in range(20)], [f"s{n} " for n in range(20)]
    one.model.on("think-aloud", [thinking(*thought), text(*said), finish(), end_mark()])
    async with await one.post_stream("think-aloud", session, reasoning="stream") as stream:
        live = await stream.collect_until_done()
    run_id = str(live[0].payload["runId"])
    for events in (live, await _read(one, run_id)):
        deltas = [(event.stream, event.payload["delta"]) for event in events if "delta" in event.payload]
        assert "".join(piece for kind, piece in deltas if kind == "thinking") == "".join(thought)
        assert "".join(piece for kind, piece in deltas if kind == "assistant") == "".join(said)
        kinds = [kind for kind, _ in deltas]
        assert kinds == sorted(kinds, reverse=True), "text was told before the thinking that came before it"
        offsets = [event.payload["offset"] for event in events if event.stream == "assistant" and not event.phase]
        assert offsets[0] == 0
    assert story(live) == story(await _read(one, run_id))
    silent = await one.run("think-aloud", session)
    await one.ended(silent)
    assert "thinking" not in {event.stream for event in await _read(one, silent)}
    await check_case(one, [run_id, silent], sessions=[session])


async def test_a_delta_is_told_without_waiting_for_the_next(shared_service: Service) -> None:
    """The second of two quick ones comes while the model is silent behind it. RESUME-06"""
    one, model = shared_service, shared_service.model
    steps = [text("one "), pause(0.02), text("two "), hold("silence"), text("three"), finish(), end_mark()]
    model.on("quick-then-silent", steps)
    stream = await one.post_stream("quick-then-silent", "no-throttle")
    run_id = str((await stream.next_event()).payload["runId"])
    await stream.until(lambda event: "two " in event.payload.get("delta", ""), 10)
    await model.until_held("silence")  # nothing lets it go on before this line, so the delta waited for nothing
    late = await one.stream(run_id)
    await late.until(lambda event: "two " in event.payload.get("delta", ""), 10)
    model.release("silence")
    for reader in (stream, late):
        assert check_stream(await reader.collect_until_done()).texts == ["one two three"]
    await check_case(one, [run_id], sessions=["no-throttle"])


async def test_a_second_subscription_sees_what_the_first_one_would(shared_service: Service) -> None:
    """Same kinds, same fields, same places, for each selection of streams. RESUME-10"""
    one, session = shared_service, "same-again"
    one.model.on(
        "tools-then-text",
        [thinking("hm "), *reply_calls(("c1", "nosuch", {"a": "b"}), words="calling ")],
        [text("answer "), hold("same"), text("ends"), finish(), end_mark()],
    )
    run_id = await one.run("tools-then-text", session, reasoning="stream")
    selections = [None, "lifecycle", "tool", "lifecycle,tool", "assistant", "assistant,thinking,lifecycle,tool"]
    first = [await one.stream(run_id, streams=selection) for selection in selections]
    readers = [asyncio.create_task(stream.collect_until_done()) for stream in first]
    whole = await one.stream(run_id)
    await whole.until(lambda event: event.payload.get("delta") == "answer ")
    one.model.release("same")
    live = await asyncio.gather(*readers)
    numbered = behind(await whole.collect_until_done(), 0)
    assert {event.stream for event in numbered} == {"lifecycle", "assistant", "thinking", "tool"}
    for selection, before in zip(selections, live, strict=True):
        wanted = (selection or "lifecycle,assistant,thinking,tool").split(",")
        picked = [event for event in numbered if event.stream in wanted]
        assert [event.raw for event in behind(before, 0)] == [event.raw for event in picked], selection
        assert before[-1].event == "done"
        for cursor in range(len(numbered) + 1):
            events = await _read(one, run_id, cursor, streams=selection)
            assert [event.raw for event in behind(events, 0)] == [event.raw for event in behind(picked, cursor)]
            assert events[-1].payload == before[-1].payload
            check_stream(events, after=cursor, filtered=selection is not None, ended=False)
    await check_case(one, [run_id], sessions=[session])


async def test_the_message_format_loses_nothing_but_the_names(shared_service: Service, model: ModelServer) -> None:
    """For clients that know only `onmessage`: the envelope names the stream."""
    one = shared_service
    one.model.on("as-messages", reply_calls(("c1", "nosuch", {})), reply_text("done with it"))
    run_id = await one.run("as-messages", "as-messages")
    await one.ended(run_id)
    named = await _read(one, run_id)
    plain = await _read(one, run_id, format="message")
    assert {event.event for event in plain} == {"message"} and model.requests == []
    assert [(event.id, event.stream, event.payload) for event in plain] == [
        (event.id, event.event, event.payload) for event in named
    ]
    check_stream(plain)
    assert [event.event for event in named] == [event.stream for event in named]
