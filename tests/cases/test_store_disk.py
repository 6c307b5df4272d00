"""A disk that fills up under a running service: nothing accepted is lost, and it goes on when there is space again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kit.client import API
from tests.kit.disk import SmallDisk, small_disk
from tests.kit.gauges import until_quiet
from tests.kit.invariants import check_at_rest, check_invariants
from tests.kit.model_server import done, finish, hold, text
from tests.kit.problems import check_problem
from tests.kit.rules import check_case, reply_texts
from tests.kit.service import Service, ServiceFactory

pytestmark = pytest.mark.sqlite

SETTINGS = {"limits.accept_wait_ms": 500, "server.drain_seconds": 0.2, "tools.abort_drain_ms": 100}


async def _fill_under_runs(one: Service, disk: SmallDisk) -> tuple[list[str], str]:
    """Runs that have ended, one in the middle, one behind it; then the disk is full. Accepted ids and the open one."""
    one.model.on("in the middle", [text("before "), hold("full"), text("after"), finish(), done()])
    ended = [await one.run(f"early {number}", "disk") for number in range(3)]
    for run_id in ended:
        await one.ended(run_id)
    middle = await one.run("in the middle", "disk")
    async with await one.stream(middle) as stream:
        await stream.until(lambda event: event.payload.get("delta") == "before ")
    waiting = await one.run("waits behind it", "disk")
    disk.fill()
    return [*ended, middle, waiting], middle


async def _posts_until_refused(one: Service) -> list[str]:
    """The write-ahead log has some room of its own; then posts are refused, with a hint. Those taken until then."""
    taken: list[str] = []
    async with asyncio.timeout(60):
        while True:
            answer = await one.post("x" * 5000, f"full-{len(taken)}", f"full-{len(taken)}")
            if answer.status != 202:
                check_problem(answer, 503, "store-busy")
                return taken
            taken.append(answer.run_id)


async def test_a_disk_that_fills_up_loses_no_accepted_run(service: ServiceFactory, tmp_path: Path) -> None:
    """Posts are refused with 503 meanwhile, reads go on, and with space again all is taken up without a restart."""
    with small_disk(tmp_path / "disk", megabytes=8) as disk:
        one = service(SETTINGS, state_dir=disk.path)
        async with one:
            run_ids, middle = await _fill_under_runs(one, disk)
            taken = await _posts_until_refused(one)
            one.model.release("full")
            refused = await one.post("x", "refused", "refused-1")
            check_problem(refused, 503, "store-busy")
            assert (await one.record(run_ids[0]))["status"] == "succeeded"
            assert len(await one.runs(sessionKey="disk")) == 5
            assert (await one.request("GET", "/healthz")).status == 200
            assert "Traceback" not in one.log, one.log[-3000:]
            disk.clear()
            for run_id in (*run_ids, *taken):
                assert (await one.ended(run_id, 60_000))["status"] == "succeeded"
            assert reply_texts(await one.record(middle)) == ["before after"]
            again = await one.post("x", "refused", "refused-1")
            assert again.status == 202
            if "runId" in refused.body:
                assert again.run_id == refused.body["runId"] or again.headers.get("idempotent-replayed") is None
            assert (await one.ended(again.run_id))["status"] == "succeeded"
            await until_quiet(one)
            await check_case(one, [*run_ids, *taken, again.run_id], sessions=["disk", "refused"])
            check_at_rest(one, accepted=[*run_ids, *taken, again.run_id])


@pytest.mark.parametrize("hard", [True, False], ids=["killed", "stopped"])
async def test_a_service_that_ends_on_a_full_disk_loses_no_accepted_run(
    service: ServiceFactory, tmp_path: Path, hard: bool
) -> None:
    """It does not start on the full disk, and says so; with space again everything goes on."""
    with small_disk(tmp_path / "disk", megabytes=8) as disk:
        one = service(SETTINGS, state_dir=disk.path)
        async with one:
            run_ids, middle = await _fill_under_runs(one, disk)
            taken = await _posts_until_refused(one)
            if hard:
                one.kill()
            else:
                one.terminate()
                await one.until_exit(60)
                assert "Traceback" not in one.log, one.log[-3000:]
            one.launch()
            code = await one.until_exit(60) if not await _ready(one) else None
            if code is not None:
                assert code == 1 and one.process is not None
                lines = one.process.output.strip().splitlines()
                assert "full" in lines[-1] and "Traceback" not in one.process.output, one.process.output
            else:
                one.kill()
            disk.clear()
            check_invariants(one, accepted=[*run_ids, *taken])
            one.model.release("full")
            await one.up()
            for run_id in (*run_ids, *taken):
                assert (await one.ended(run_id, 60_000))["status"] == "succeeded"
            assert reply_texts(await one.record(middle)) == ["before after"]
            await check_case(one, [*run_ids, *taken], sessions=["disk"])


async def _ready(one: Service) -> bool:
    """Whether it came up on the full disk, which it may where nothing had to be written."""
    process = one.process
    assert process is not None
    async with asyncio.timeout(60):
        while process.alive and "Laneway ready" not in process.output:  # noqa: ASYNC110 - nothing but its output tells
            await asyncio.sleep(0.01)
    return process.alive


async def test_a_full_disk_takes_no_streams_down(service: ServiceFactory, tmp_path: Path) -> None:
    """They stay open through it and are told the rest afterwards, without gap or repeat."""
    with small_disk(tmp_path / "disk", megabytes=8) as disk:
        one = service(SETTINGS, state_dir=disk.path)
        async with one:
            words = [f"w{number} " for number in range(200)]
            one.model.on("write on", [text("begin "), hold("write on"), text(*words), finish(), done()])
            run_id = await one.run("write on", "streams")
            follower = one.follow(run_id).start()
            await follower.until(lambda event: event.payload.get("delta") == "begin ")
            disk.fill()
            await _posts_until_refused(one)
            one.model.release("write on")
            answer = await one.request("GET", f"{API}/runs/{run_id}")
            assert answer.status == 200 and answer.body["status"] == "running"
            disk.clear()
            await follower.finish(60)
            assert follower.connections == 1 and follower.violations == []
            await check_case(one, [run_id], sessions=["streams"])
