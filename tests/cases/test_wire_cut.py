"""A reader that takes nothing for too long is cut: nothing of its connection is left, and nobody else notices."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from tests.kit.gauges import gauges, until, until_quiet
from tests.kit.model_server import done, finish, text
from tests.kit.rules import check_plain, check_run
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import Stream, check_stream

IMPATIENT = """
import app.api.sse
from app.cli.main import main

app.api.sse.SEND_TIMEOUT_S = 3.0
main()
"""
"""The service, with a minute made short."""

BYTES_A_SECOND = 1_000_000
"""Of a reader that is slow: what is sent at once, about a megabyte, takes it a third of the time that it has."""


def _peers(one: Service) -> set[int]:
    """Ports of those who are connected to the service, also where only the kernel still knows."""
    port = int(one.address.rpartition(":")[2])
    sockets = psutil.net_connections("tcp")
    return {socket.raddr.port for socket in sockets if socket.laddr.port == port and socket.raddr}


async def _slowly(stream: Stream, enough: asyncio.Event) -> None:
    """Read at this pace, and to the end once it was enough."""
    begun = time.monotonic()
    async for _ in stream:
        if not enough.is_set():
            await asyncio.sleep(
                begun + stream.bytes_read / BYTES_A_SECOND - time.monotonic()
            )  # it waits for nothing, it is slow


@pytest.fixture
def impatient(service: ServiceFactory, tmp_path: Path) -> Service:
    script = tmp_path / "impatient.py"
    script.write_text(IMPATIENT)
    one = service()
    one.program = (str(script), "serve")
    return one


async def test_a_reader_that_takes_nothing_is_cut_at_once_and_a_slow_one_is_not(impatient: Service) -> None:
    async with impatient as one:
        one.model.on("a flood", [text(*["0123456789abcdef" * 6000] * 110), finish(), done()])
        run_id = await one.run("a flood", "cut")
        await one.ended(run_id)
        before = _peers(one)
        deaf = await one.stream(run_id, receive_buffer=2048)
        (its_port,) = _peers(one) - before
        slow = await one.stream(run_id, receive_buffer=1_000_000)
        assert (await gauges(one))["open_streams"] == 2

        enough = asyncio.Event()
        reading = asyncio.create_task(_slowly(slow, enough))
        await until(lambda: "stream.cut" in one.log, "the one that takes nothing is cut")
        await until(lambda: its_port not in _peers(one), "the socket of the one that was cut is gone", 2)
        await until_quiet(one, open_streams=1)
        assert not reading.done(), "it was read to its end before the other one was cut; tell more"
        other = await one.run("others are served on", "cut")
        assert (await one.ended(other))["status"] == "succeeded"
        enough.set()
        await reading
        assert check_stream(slow.events).outcome == "completed"
        assert await slow.expect_end() == [] and slow.violations == []
        await deaf.collect_until_done(60)
        assert deaf.truncated
        slow.close()
        await check_run(one, other)
        await check_plain(one, "cut")
        await until_quiet(one)
        assert one.log.count("stream.cut") == 1
        assert "Traceback" not in one.log and "ASGI" not in one.log, one.log[-3000:]
