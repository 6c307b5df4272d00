"""Stop reaches tools, the gaps between them, and what they have started; the session is free again in time."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import psutil
import pytest

from tests.kit.calls import calls_of, ends_of, results, told
from tests.kit.gauges import gauges, until, until_quiet
from tests.kit.invariants import check_invariants
from tests.kit.model_server import ModelServer, Request, Step, pause, reply_calls, reply_text
from tests.kit.rules import check_case, check_plain, check_run
from tests.kit.service import ProbeService, ServiceFactory


def rounds(request: Request) -> list[Step]:
    """A tool in each of ten rounds: four side by side, or two in order."""
    number = sum(message["role"] == "assistant" for message in request.since_last_user)
    if number == 10:
        return reply_text("all done")
    name, count = ("probe", 4) if number % 2 == 0 else ("probe_in_order", 2)
    mark = f"{request.session}|{number}"
    calls = [
        (f"c{n}", name, {"marker": f"{mark}|{n}", "seconds": 0.02 * (n + 1), "show": ["x\n"]}) for n in range(count)
    ]
    return [pause(0.005), *reply_calls(*calls, words="next")]


async def test_stopped_at_a_hundred_instants_of_a_run_with_tools(service: ServiceFactory, model: ModelServer) -> None:
    """ABORT-02: one end, a paired history, nothing started or asked after the answer, and the next turn works."""
    model.default(rounds)
    chance = random.Random(11)
    async with service({"agents.defaults.max_concurrent": 16}, probes=True) as one:

        async def stop(number: int, after_s: float) -> str:
            session = f"stop-{number}"
            run_id = await one.run(f"go [s:{session}]", session)
            await asyncio.sleep(after_s)  # an instant of no meaning
            answer = await one.abort(run_id)
            asked, begun = len(model.requests_of(session)), _begun(one, session)
            record = await one.ended(run_id)
            assert record["status"] == ("cancelled" if answer["abortRequestedAt"] else "succeeded")
            # One may have been on its way already; the recording is that of another process's clock.
            ended = len(model.requests_of(session))
            assert ended - asked <= 1, "the model was asked after the stop"
            assert ended <= sum(event.phase == "model" for event in (await told(one, run_id)).events)
            assert _begun(one, session) == begun, "a tool began after the stop"
            checked = await check_run(one, run_id)
            calls_of(checked)
            await check_plain(one, session)
            return run_id

        runs: list[str] = []
        for start in range(0, 100, 10):
            batch = (stop(start + n, chance.uniform(0, 0.9)) for n in range(10))
            runs += await asyncio.gather(*batch)
        statuses = [(await one.record(run_id))["status"] for run_id in runs]
        assert statuses.count("cancelled") > 60, statuses
        check_invariants(one, accepted=runs)
        await until_quiet(one)
        assert not psutil.Process(one.pid).children(recursive=True)


def _begun(one: ProbeService, session: str) -> int:
    return sum(line.what == "begin" and line.marker.startswith(f"{session}|") for line in one.probes())


CHILDREN = "(sleep 15; echo late > late.txt) & setsid sh -c 'sleep 15; echo late > later.txt' & sleep 60"


async def test_a_stopped_command_takes_its_children_with_it(
    service: ServiceFactory, model: ModelServer, tmp_path: Path
) -> None:
    """ABORT-01"""
    workspace = tmp_path / "workspace"
    model.on("work", reply_calls(("c1", "exec", {"command": CHILDREN})), reply_text("never"))
    async with service({"tools.exec.security": "full", "agents.main.workspace": str(workspace)}) as one:
        run_id = await one.run("work [s:a]", "a")
        process = psutil.Process(one.pid)
        await until(lambda: len(process.children(recursive=True)) >= 5, "the children are at work")
        children = process.children(recursive=True)
        await one.abort(run_id)
        assert (await one.ended(run_id, 8_000))["status"] == "cancelled"
        await until(lambda: not any(child.is_running() for child in children), "the children are gone", 5)
        [ended] = ends_of(await told(one, run_id))
        assert (ended["outcome"], ended["isError"]) == ("aborted", True)
        assert not list(workspace.glob("late*"))
        await check_case(one, [run_id], sessions=["a"])


async def test_every_start_has_its_end_live_and_on_replay(probe_service: ProbeService) -> None:
    """ABORT-04"""
    one, model = probe_service, probe_service.model
    model.on("slow", reply_calls(("c1", "probe", {"marker": "abort-4", "seconds": 30})))
    run_id = await one.run("slow [s:abort-4]", "abort-4")
    follower = one.follow(run_id).start()
    await follower.until(lambda event: event.stream == "tool" and event.phase == "start", 30)
    await one.abort(run_id)
    live = await follower.finish()
    assert [event.phase for event in live if event.stream == "tool"] == ["requested", "start", "end"]
    again = await told(one, run_id)
    assert [event.payload for event in live if event.seq] == [event.payload for event in again.events]
    [result] = await results(one, "abort-4")
    assert result["isError"]
    await check_case(one, [run_id], sessions=["abort-4"])


async def test_a_deaf_tool_holds_the_session_no_longer_than_the_drain(
    service: ServiceFactory, model: ModelServer
) -> None:
    """LANE-05, ABORT-06: the answer says requested; the run ends within the limit; what comes later is dropped."""
    model.on("deaf", reply_calls(("c1", "probe", {"marker": "deaf", "seconds": 60, "ignore": 4})))
    model.on("next", reply_text("fine"))
    async with service({"tools.abort_drain_ms": 300}, probes=True) as one:
        for number in range(10):
            session = f"deaf-{number % 3}"
            run_id = await one.run(f"deaf {number} [s:{session}]", session)
            await until(
                lambda count=number + 1: sum(line.what == "begin" for line in one.probes()) == count,
                "the tool is at work",
            )
            answer = await one.abort(run_id)
            assert answer["abortRequestedAt"] is not None
            assert answer["status"] == (await one.record(run_id))["status"] or answer["status"] == "running"
            begun = time.monotonic()
            later = await one.run(f"next {number} [s:{session}]", session)
            assert (await one.ended(run_id))["status"] == "cancelled"
            assert (await one.ended(later))["status"] == "succeeded"
            assert time.monotonic() - begun < 3.5, "the session waited for the deaf tool"
            await check_run(one, run_id)
        await until(lambda: sum(line.what == "end" for line in one.probes()) == 10, "the deaf ones have returned", 60)
        dropped = "SELECT count(*) AS n FROM audit WHERE action = 'tool.result-dropped'"
        await until(lambda: one.query(dropped)[0]["n"] == 10, "the ledger has what was dropped")
        assert (await gauges(one))["turns_left_behind"] == 0
        check_invariants(one)


@pytest.mark.parametrize("how", ["exit", "interrupt", "cancel"])
async def test_a_tool_that_dies_oddly_frees_its_session(probe_service: ProbeService, how: str) -> None:
    """LANE-06: whatever it raises, the run ends, and the process stays up."""
    one, model, session = probe_service, probe_service.model, f"lane-6-{how}"
    model.on(session, reply_calls(("c1", "probe", {"marker": how, "how": how})), reply_text("I see"))
    run_id = await one.run(f"x [s:{session}]", session)
    later = await one.run(f"{session} again [s:{session}]", session)
    assert (await one.ended(run_id))["status"] == "succeeded"
    assert (await one.ended(later))["status"] == "succeeded"
    assert one.alive
    await check_case(one, [run_id, later], sessions=[session])


async def test_the_run_limit_stops_tools_too(service: ServiceFactory, model: ModelServer) -> None:
    model.on("long", reply_calls(("c1", "probe", {"marker": "limit", "seconds": 60})))
    async with service(probes=True) as one:
        await one.ended(await one.run("the model layer is loaded [s:a]", "a"))
        run_id = await one.run("long [s:a]", "a", timeoutSeconds=4)
        record = await one.ended(run_id)
        assert (record["status"], record["error"]["code"]) == ("timed_out", "timed-out")
        [ended] = ends_of(await told(one, run_id))
        assert ended["outcome"] == "aborted"
        assert [line.what for line in one.probes()] == ["begin", "end"]
        await check_case(one, [run_id], sessions=["a"])
