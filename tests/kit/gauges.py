"""The level of a running service: its own gauges, and what the kernel says of its process (rule R7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.client import Client
from tests.kit.service import Service


async def gauges(service: Client) -> dict[str, float]:
    """`/metrics`, by name without the prefix `laneway_`."""
    return {
        sample.name.removeprefix("laneway_"): sample.value
        for family in text_string_to_metric_families(await service.text("/metrics"))
        for sample in family.samples
    }


@dataclass(frozen=True, slots=True)
class Level:
    """`clients` are connections that others made to it, `files` open file handles that are no TCP sockets."""

    clients: int
    files: int
    threads: int
    memory: int


def level(service: Service) -> Level:
    """As the kernel counts it now."""
    process = psutil.Process(service.pid)
    sockets = process.net_connections("tcp")
    port = int(service.address.rpartition(":")[2])
    clients = sum(socket.laddr.port == port and bool(socket.raddr) for socket in sockets)
    return Level(clients, process.num_fds() - len(sockets), process.num_threads(), process.memory_info().rss)


async def until(condition: Callable[[], object], what: str, timeout_s: float = 30.0) -> None:
    """Await a condition on the outside world that nothing announces."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - nothing but asking tells
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise TimeoutError(f"not within {timeout_s} s: {what}") from None


async def until_quiet(service: Service, timeout_s: float = 30.0, **expected: float) -> dict[str, float]:
    """Await that no stream is open, nothing executes and no write waits; or the values named. The gauges then."""
    wanted = {"open_streams": 0.0, "runs_executing": 0.0, "store_queued_steps": 0.0, **expected}
    seen: dict[str, float] = {}
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                seen = await gauges(service)
                if all(seen[name] == value for name, value in wanted.items()):
                    return seen
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise TimeoutError(f"not quiet within {timeout_s} s: expected {wanted}, got {seen}") from None


async def folded(one: Service, *run_ids: str) -> None:
    """Until these runs are folded."""
    marks = ", ".join("?" for _ in run_ids)
    query = f"SELECT count(*) AS n FROM run WHERE folded_at IS NOT NULL AND id IN ({marks})"
    await until(lambda: one.query(query, *run_ids)[0]["n"] == len(run_ids), "the runs are folded", 60)
