"""The stream clients: what they read, how they stop reading, how connections end, how a run is followed to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

import orjson
import pytest

from tests.kit.contract import NotDescribed
from tests.kit.model_server import ModelServer, cut, headers, pause, raw, recut, reset, stay_open
from tests.kit.sse import Follower, Stream, StreamCut

Handler = Callable[[dict[str, str], str, asyncio.StreamWriter], Coroutine[None, None, None]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(strict=False) as one:
        yield one


async def opened(server: ModelServer, *, receive_buffer: int | None = None) -> Stream:
    body = orjson.dumps({"stream": True, "messages": [{"role": "user", "content": "x"}]})
    url = server.base_url + "/chat/completions"
    return await Stream.open(url, method="POST", body=body, receive_buffer=receive_buffer)


def block(seq: int, stream: str = "assistant", **data: object) -> bytes:
    envelope = {"runId": "r", "seq": seq, "stream": stream, "ts": "t", "data": data}
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (seq, stream.encode(), orjson.dumps(envelope))


def done(seq: int) -> bytes:
    return b'id: %d\nevent: done\ndata: {"stream":"done","ts":"t","data":{"status":"ok"}}\n\n' % seq


async def test_events_to_done_then_the_end(server: ModelServer) -> None:
    server.script([[recut(raw(block(1), block(2), done(3)), size=5), pause(0.05)]])
    async with await opened(server) as stream:
        events = await stream.collect_until_done(5)
        assert [event.seq for event in events] == [1, 2, None]
        assert stream.done is events[-1] and stream.last_id == "3"
        assert await stream.expect_end() == []
        assert stream.finished and not stream.truncated and stream.violations == []


async def test_iteration_and_until(server: ModelServer) -> None:
    server.script([[raw(*(block(seq) for seq in range(1, 30))), stay_open(5)]])
    async with await opened(server) as stream:
        async for event in stream:
            if event.seq == 3:
                break
        assert (await stream.next_event()).seq == 4
        assert (await stream.until(lambda event: event.seq == 20)).seq == 20
        assert [event.seq for event in await stream.collect_for(0.1)] == list(range(21, 30))
        with pytest.raises(TimeoutError, match="no done"):
            await stream.collect_until_done(0.05)


async def test_a_timeout_loses_nothing(server: ModelServer) -> None:
    server.script([[raw(*(block(seq) for seq in range(1, 201)), delay_s=0.002), raw(done(201))]])
    async with await opened(server) as stream:
        while stream.done is None:
            await stream.collect_for(0.003)
    assert [event.id for event in stream.events] == [str(seq) for seq in range(1, 202)]


async def test_how_a_connection_ends(server: ModelServer) -> None:
    close_delimited = headers(200, {"content-type": "text/event-stream"}, framing="close")
    server.script([[raw(block(1)), cut()], [raw(block(1)), reset()], [close_delimited, raw(block(1))]])
    for truncated in (True, True, False):
        async with await opened(server) as stream:
            assert [event.seq for event in await stream.collect_until_done(5)] == [1]
            assert (stream.truncated, stream.finished) == (truncated, not truncated)
            with pytest.raises(StreamCut):
                await stream.next_event()


async def test_other_answers(server: ModelServer) -> None:
    body = b'{"code":"x"}'
    server.script([[headers(404, {"content-length": str(len(body))}, framing="length"), raw(body)]])
    server.script([[headers(204, {"x-a": "b"}, framing="length")]])
    async with await opened(server) as stream:
        assert stream.status == 404 and await stream.json() == {"code": "x"}
    async with await opened(server) as stream:
        assert (stream.status, stream.headers["x-a"]) == (204, "b")
        assert await stream.collect_until_done(2) == [] and stream.finished


async def test_a_reader_that_stops_reading_is_felt_by_the_server(server: ModelServer) -> None:
    count = 20_000
    server.script([[raw(*(block(seq, pad="x" * 400) for seq in range(1, count + 1))), raw(done(count + 1))]])
    stream = await opened(server, receive_buffer=4096)
    await stream.next_event()
    await asyncio.sleep(0.5)
    assert server.in_flight.total() == 1, "the server could write it all although nobody reads"
    assert len(await stream.collect_until_done(30)) == count + 1
    stream.close()


async def test_leaving_by_close_and_by_reset(server: ModelServer) -> None:
    server.default([raw(block(1)), stay_open(30)])
    for leave in (Stream.close, Stream.abort):
        stream = await opened(server)
        await stream.next_event()
        leave(stream)
    await server.until(lambda: all(request.disconnected_at for request in server.requests), "both disconnects", 3)


@contextlib.asynccontextmanager
async def site(*handlers: Handler) -> AsyncIterator[tuple[str, list[tuple[str, str | None]]]]:
    """Answers connection by connection; yields the address and what was asked: target and Last-Event-ID."""
    asked: list[tuple[str, str | None]] = []
    left = list(handlers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:] if line)
        asked.append((lines[0].split()[1], fields.get("last-event-id")))
        await left.pop(0)(fields, lines[0], writer)
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/events", asked


def answer(*pieces: bytes) -> Handler:
    async def say(fields: dict[str, str], line: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"".join(pieces))
        await writer.drain()

    return say


async def test_a_follower_comes_back_as_a_browser_does() -> None:
    ready = b'retry: 20\nid: 0\nevent: ready\ndata: {"stream":"ready","data":{}}\n\n'
    refused = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"
    handlers = [
        answer(HEAD, ready, block(1), block(2)),
        answer(HEAD, block(3)),
        answer(refused),
        answer(b""),
        answer(HEAD, block(4), done(5)),
    ]
    async with site(*handlers) as (url, asked):
        follower = Follower(lambda: url)
        events = await follower.finish(10)
    assert [event.seq for event in events if event.seq] == [1, 2, 3, 4]
    assert follower.ended_by == "done" and follower.statuses == [200, 200, 502, 0, 200]
    assert asked == [
        ("/events", None),
        ("/events", "2"),
        ("/events", "3"),
        ("/events?after=3", None),
        ("/events?after=3", None),
    ]


async def test_a_follower_stops_on_204() -> None:
    gone = b"HTTP/1.1 204 No Content\r\n\r\n"
    async with site(answer(HEAD, block(1)), answer(gone)) as (url, _):
        follower = Follower(lambda: url)
        await follower.finish(5)
    assert follower.ended_by == "204" and follower.last == "1"


async def test_a_follower_in_the_background_can_be_dropped_and_stopped() -> None:
    async def linger(fields: dict[str, str], line: str, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + block(int(fields.get("last-event-id", 0)) + 1))
        await asyncio.sleep(2)

    async with site(*[linger] * 3) as (url, _):
        async with Follower(lambda: url) as follower:
            assert (await follower.until(lambda event: event.seq == 1)).seq == 1
            follower.drop()
            assert (await follower.until(lambda event: event.seq == 2)).seq == 2
            with pytest.raises(TimeoutError, match="not at the end"):
                await follower.finish(0.05)
        assert follower.connections == 2


async def test_a_follower_does_not_keep_to_itself_what_no_document_describes() -> None:
    """Whoever waits for an event, for the end, or only leaves, is told."""
    wrong = answer(HEAD, block(1, "nosuch"))

    async def wait(follower: Follower) -> None:
        await follower.until(lambda event: event.seq == 2, 5)

    async def finish(follower: Follower) -> None:
        await follower.finish(5)

    async def leave(follower: Follower) -> None:
        await asyncio.wait([follower.start()._task], timeout=5)  # type: ignore[list-item]
        await follower.stop()

    for way in (wait, finish, leave):
        async with site(wrong) as (url, _):
            with pytest.raises(NotDescribed, match="there is no event nosuch"):
                await way(Follower(lambda url=url: url, described=True))  # type: ignore[misc]
