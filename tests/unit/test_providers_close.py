"""Leaving a call: the connection to the provider is closed at once, at every point, and nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import uvloop

from app.providers.contract import Finished, ModelProvider
from tests.kit.model_server import ModelServer
from tests.kit.steps import (
    Step,
    chunk_frame,
    delay_headers,
    done,
    finish,
    headers,
    pause,
    raw,
    reply_text,
    stay_open,
    text,
    thinking,
    tool_call,
)
from tests.unit.test_providers_support import ByteServer, asking, provider_at, tell

SOON_S = 0.5

Scene = Callable[[ModelProvider, ModelServer], Coroutine[Any, Any, float]]

POINTS: dict[str, list[Step]] = {
    "before the headers": [delay_headers(30)],
    "behind the headers": [headers(200, {"content-type": "text/event-stream"}), pause(30)],
    "behind text": [text("a", "b"), pause(30)],
    "behind thinking": [thinking("a"), pause(30)],
    "inside a call": [tool_call("c", "weather", '{"city"'), pause(30)],
    "inside a line": [text("a"), raw(b'data: {"choices'), pause(30)],
    "behind the finish reason": [text("a"), finish(), pause(30)],
    "in a flood": [raw(*[chunk_frame({"content": "x" * 100})] * 5000, delay_s=0.0005)],
    "in a refusal": [headers(500, {"content-type": "application/json"}), raw(b'{"error"'), pause(30)],
}


def _play(scene: Scene, model: ModelServer, loop: str) -> None:
    """Run a scene on a loop of its own; afterwards no task may be left and no connection be open."""

    async def whole() -> None:
        async with provider_at(model.base_url) as provider:
            left_at = await scene(provider, model)
            gone = model.requests[-1]
            await model.until(lambda: gone.disconnected_at is not None, "closed connection", timeout_s=5)
            await model.until(lambda: model.connections == 0, "closed connection", timeout_s=5)
            gone_at = gone.disconnected_at
            assert gone_at is not None
            assert gone_at - left_at < SOON_S
            gc.collect()
            await asyncio.sleep(0.02)  # generators that were dropped are closed by the loop
            assert len(asyncio.all_tasks()) == 1, asyncio.all_tasks()
        assert len(asyncio.all_tasks()) == 1, asyncio.all_tasks()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        runner.get_loop().set_exception_handler(_fail)
        runner.run(whole())


def _fail(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    raise AssertionError(context)


async def _cancelled(provider: ModelProvider, model: ModelServer) -> float:
    task = asyncio.create_task(tell(provider))
    await model.until_requests(1)
    await asyncio.sleep(0.1)
    left_at = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - left_at < SOON_S
    return left_at


async def _timed_out(provider: ModelProvider, model: ModelServer) -> float:
    """As the idle watchdog does it: a limit around each step of the generator, which is closed afterwards."""
    stream = provider.stream(asking())
    with pytest.raises(TimeoutError):
        while True:
            async with asyncio.timeout(0.2):
                await anext(stream)
    left_at = time.monotonic()
    await _close(stream)
    return left_at


async def _closed_between_parts(provider: ModelProvider, model: ModelServer) -> float:
    stream = provider.stream(asking())
    await anext(stream)
    await asyncio.sleep(0.05)
    left_at = time.monotonic()
    await _close(stream)
    assert time.monotonic() - left_at < SOON_S
    return left_at


async def _close(stream: Any) -> None:
    closing: Awaitable[None] = stream.aclose()
    await closing


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("point", POINTS)
def test_cancelling_closes_the_connection(model: ModelServer, point: str, loop: str) -> None:
    model.script(POINTS[point])
    _play(_cancelled, model, loop)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("point", ["before the headers", "behind the headers", "behind text", "inside a line"])
def test_a_limit_around_a_step_closes_the_connection(model: ModelServer, point: str, loop: str) -> None:
    model.script(POINTS[point])
    _play(_timed_out, model, loop)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("point", ["behind text", "behind thinking", "inside a call", "in a flood"])
def test_closing_the_generator_closes_the_connection(model: ModelServer, point: str, loop: str) -> None:
    model.script(POINTS[point])
    _play(_closed_between_parts, model, loop)


async def test_a_call_that_was_left_does_not_disturb_the_next(model: ModelServer) -> None:
    async with provider_at(model.base_url) as provider:
        for number in range(30):
            model.script([text(f"left {number}"), pause(30)])
            stream = provider.stream(asking())
            await anext(stream)
            await _close(stream)
            model.script(reply_text(f"whole {number}"))
            assert (await tell(provider)).text == f"whole {number}"
        await model.until(lambda: model.connections <= 1, "closed connections")


@contextmanager
def _deaf_listener() -> Iterator[int]:
    """A port whose queue is full, so that connecting to it gets no answer."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def test_cancelling_while_the_connection_is_made() -> None:
    with _deaf_listener() as port:
        async with provider_at(f"http://127.0.0.1:{port}") as provider:
            task = asyncio.create_task(tell(provider))
            await asyncio.sleep(0.2)
            begun = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - begun < SOON_S
            await asyncio.sleep(0.05)
            assert len(asyncio.all_tasks()) == 1


async def test_connecting_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.providers.client.CONNECT_S", 0.3)
    with _deaf_listener() as port:
        async with provider_at(f"http://127.0.0.1:{port}") as provider:
            told = await tell(provider)
    assert told.failed("provider-unreachable").retryable
    assert 0.3 <= told.seconds < 2


async def test_a_complete_answer_ends_the_generator_without_waiting(model: ModelServer) -> None:
    model.script([text("x"), finish(), done(), stay_open(30)])
    async with provider_at(model.base_url) as provider:
        stream = provider.stream(asking())
        parts = [await anext(stream), await anext(stream)]
        assert isinstance(parts[-1], Finished)
        begun = time.monotonic()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert time.monotonic() - begun < SOON_S
        await model.until(lambda: model.connections == 0, "closed connection")


async def test_nothing_runs_on_when_the_generator_is_closed(model: ModelServer) -> None:
    model.script([text("x"), pause(30)])
    async with provider_at(model.base_url) as provider:
        stream = provider.stream(asking())
        await anext(stream)
        assert any(task.get_name() == "read local" for task in asyncio.all_tasks())
        await _close(stream)
        assert not any(task.get_name() == "read local" for task in asyncio.all_tasks())


async def test_an_error_closes_the_connection(model: ModelServer) -> None:
    model.script([text("x"), raw(b"data: {broken\n\n"), stay_open(30)])
    async with provider_at(model.base_url) as provider:
        (await tell(provider)).failed("provider-bad-response")
        await model.until(lambda: model.connections == 0, "closed connection")


async def test_a_refusal_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.providers.transport.ERROR_BODY_S", 0.2)
    head = b"HTTP/1.1 500 No\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
    async with ByteServer([head], stays_open_s=10).running() as server, provider_at(server.url) as provider:
        told = await tell(provider)
        assert told.failed("provider-error").status == 500
        assert told.seconds < 1
        await asyncio.sleep(0.1)
        assert server.gone_at is not None


async def test_closing_the_providers_closes_idle_connections(model: ModelServer) -> None:
    model.script(reply_text("x"))
    async with provider_at(model.base_url) as provider:
        assert (await tell(provider)).text == "x"
        assert model.connections == 1
    await model.until(lambda: model.connections == 0, "closed connection")
