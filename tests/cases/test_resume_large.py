"""Large texts: every number is there, every event within its limit, and what does not fit is said so, not dropped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from tests.kit.gauges import until_quiet
from tests.kit.model_server import done, finish, text, thinking
from tests.kit.rules import check_case, reply_texts, transcript_text
from tests.kit.service import Service
from tests.kit.sse import Event, check_stream
from tests.kit.story import behind, story

EVENT_BYTES = 65_536
ENVELOPE_BYTES = 300
MEGABYTE = 1_000_000


@pytest.fixture(autouse=True)
async def _comes_to_rest(shared_service: Service) -> AsyncIterator[None]:
    """Whatever a test did, no stream is left open and nothing executes (rule R7)."""
    yield
    await until_quiet(shared_service)


def _cut(words: str, size: int) -> list[str]:
    return [words[at : at + size] for at in range(0, len(words), size)]


def _sizes(events: Sequence[Event]) -> list[tuple[int, str, str | None]]:
    return [(len(event.raw.encode()), event.stream, event.phase) for event in events]


LONG = {
    "5000 deltas of 200": (_cut("abcdefghi " * (MEGABYTE // 10), 200), False),
    "deltas of every size": ([("x" * size + "é") for size in (1, 10, 1000, 30_000, 60_000, 1, 2, 5000)], False),
    "one delta of 1 MB": (["0123456789" * (MEGABYTE // 10)], False),
    "one delta of wide characters": (["日本語😀" * 50_000], False),
    "one delta of escapes": (['\x01\x02\n"\\' * 40_000], False),
    "text that just fits": (["y" * 1000] * 65, True),
}


@pytest.mark.parametrize("name", LONG)
async def test_a_long_message_is_told_whole_in_events_within_their_limit(shared_service: Service, name: str) -> None:
    """A message over the event limit ends with its length and without its text. RESUME-04"""
    one, session = shared_service, f"long-{list(LONG).index(name)}"
    pieces, fits = LONG[name]
    whole = "".join(pieces)
    one.model.on(name, [text(*pieces), finish(), done()])
    async with await one.post_stream(name, session) as stream:
        live = await stream.collect_until_done(60)
        assert stream.violations == []
    checked = check_stream(live)
    assert checked.texts == [whole]
    run_id = str(live[0].payload["runId"])
    ends = [event for event in live if event.stream == "assistant" and event.phase == "end"]
    assert len(ends) == 1 and ends[0].payload["length"] == len(whole)
    assert ("text" in ends[0].payload) is fits
    for cursor in (0, 2, 3, 4, len(checked.events) // 2, len(checked.events) - 2):
        async with await one.stream(run_id, last_event_id=cursor) as stream:
            events = await stream.collect_until_done(60)
        check_stream(events, after=cursor)
        assert story(behind(events, cursor)) == story(behind(live, cursor))
    record = await one.ended(run_id)
    assert reply_texts(record) == [whole]
    assert [transcript_text(item) for item in await one.transcript(session)] == [name, whole]
    await check_case(one, [run_id], sessions=[session])
    too_large = [found for found in _sizes(behind(live, 0)) if found[0] > EVENT_BYTES + ENVELOPE_BYTES]
    assert not too_large, f"events over the limit of {EVENT_BYTES} bytes: {too_large}"


INPUTS = {
    "ascii": "a" * MEGABYTE,
    "wide": "日😀" * 200_000,
    "escapes": '\x01"\\' * 100_000,
    "nul": "\0" * 100_000,
    "just-over": "b" * EVENT_BYTES,
}


@pytest.mark.parametrize("name", INPUTS)
async def test_a_long_input_is_cut_in_its_event_only(shared_service: Service, name: str) -> None:
    """With a mark; the model and the transcript get it whole."""
    one, session, words = shared_service, f"long-input-{name}", INPUTS[name]
    one.model.default([text("read it"), finish(), done()])
    run_id = await one.run([{"type": "text", "text": f"{name}: "}, {"type": "text", "text": words}], session)
    await one.ended(run_id)
    async with await one.stream(run_id) as stream:
        events = await stream.collect_until_done()
    queued = next(event for event in events if event.phase == "queued")
    told = "".join(part["text"] for part in queued.payload["input"]["parts"])
    assert queued.payload["input"]["truncated"] is True
    assert told.startswith(f"{name}: ") and f"{name}: {words}".startswith(told) and len(told) > 1000
    assert len(queued.raw.encode()) <= EVENT_BYTES + ENVELOPE_BYTES, f"{len(queued.raw.encode())} bytes"
    kept = [item for item in await one.transcript(session) if item["role"] == "user"]
    assert transcript_text(kept[0]) == f"{name}: {words}"
    assert words in one.model.requests[-1].last_user_text
    await check_case(one, [run_id], sessions=[session])


async def test_a_short_input_is_told_whole_and_unmarked(shared_service: Service) -> None:
    run_id = await shared_service.run("short", "short-input")
    await shared_service.ended(run_id)
    async with await shared_service.stream(run_id) as stream:
        queued = (await stream.until(lambda event: event.phase == "queued")).payload["input"]
    assert [part["text"] for part in queued["parts"]] == ["short"] and not queued.get("truncated")


async def test_long_thinking_is_told_whole_too(shared_service: Service) -> None:
    one, session = shared_service, "long-thinking"
    thought = "thinking hard " * 20_000
    one.model.on("think-long", [thinking(*_cut(thought, 500)), text("so it is"), finish(), done()])
    async with await one.post_stream("think-long", session, reasoning="stream") as stream:
        live = await stream.collect_until_done(60)
    deltas = [event for event in live if event.stream == "thinking"]
    assert "".join(event.payload.get("delta", "") for event in deltas) == thought
    assert deltas[-1].phase == "end" and deltas[-1].payload["length"] == len(thought)
    assert "text" not in deltas[-1].payload
    check_stream(live)
    too_large = [found for found in _sizes(behind(live, 0)) if found[0] > EVENT_BYTES + ENVELOPE_BYTES]
    assert not too_large, too_large
