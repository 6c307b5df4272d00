"""The process dies at each crash point of tools, under load: no finished call repeated, no started one without a row.

Two kinds of call: probes, which keep a log of their own in the service's process, and a real command with children.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import orjson
import psutil
import pytest

from app.faults import Point
from tests.crash.load import Load
from tests.kit.gauges import until
from tests.kit.model_server import ModelServer, Request, Step, pause, reply_calls, reply_text
from tests.kit.rules import check_case
from tests.kit.service import ProbeService, ServiceFactory

KILLED = -signal.SIGKILL

CHAINS = {
    "planned and intended": [
        (Point.CALLS_PLANNED, 2),
        (Point.CALL_INTENDED, 3),
        (Point.CALL_INTENDED, 8),
    ],
    "returned and done": [
        (Point.CALL_RETURNED, 2),
        (Point.CALL_DONE, 2),
        (Point.CALL_RETURNED, 9),
    ],
    "closed": [(Point.CALLS_DONE, 2), (Point.CALLS_DONE, 4), (Point.SETTLE_BEFORE_COMMIT, 2)],
    "recovered": [
        (Point.CALL_RETURNED, 3),
        (Point.CALLS_RECOVERED, 1),
        (Point.CALL_DONE, 3),
        (Point.CALLS_RECOVERED, 1),
    ],
    "aborted": [
        (Point.ABORT_COMMITTED, 1),
        (Point.ABORT_ANSWERED, 1),
        (Point.SETTLE_BEFORE_COMMIT, 4),
        (Point.CALL_RETURNED, 5),
    ],
}


def with_tools(request: Request) -> list[Step]:
    """Two rounds of probes, then an answer: side by side with one that fails, then one after the other."""
    rounds = sum(message["role"] == "assistant" for message in request.since_last_user)
    mark = f"{request.last_user_text}|{rounds}"
    if rounds == 0:
        calls = [("probe", {"marker": f"{mark}|{number}", "seconds": 0.02 * number}) for number in range(3)]
        calls.append(("probe", {"marker": f"{mark}|fails", "how": "fail"}))
    elif rounds == 1:
        calls = [("probe_in_order", {"marker": f"{mark}|{number}", "seconds": 0.01}) for number in range(2)]
        calls.append(("nosuch", {}))
    else:
        return [pause(0.02), *reply_text(f"done with {request.last_user_text}")]
    # Ids as some servers give them: the same ones again in each answer.
    return [pause(0.02), *reply_calls(*((f"call_{n}", name, args) for n, (name, args) in enumerate(calls)), words="so")]


@pytest.mark.parametrize("chain", CHAINS)
async def test_no_tool_is_lost_or_repeated_by_kills(service: ServiceFactory, model: ModelServer, chain: str) -> None:
    model.default(with_tools)
    one = service({"agents.defaults.max_concurrent": 2}, probes=True)
    load = Load(one)
    for life, (point, nth) in enumerate(CHAINS[chain]):
        if life:
            one.launch(f"{point.value}=kill@{nth}")
        else:
            await one.up(f"{point.value}=kill@{nth}")
            load.start(sessions=3, abort_every=2 if chain == "aborted" else 0)
        assert await one.until_exit() == KILLED, f"{point} was never passed {nth} times"
    await one.up()
    await load.finish()
    await load.check()
    check_probes(one)


def check_probes(one: ProbeService) -> None:
    """The probes' own log against the rows: INV-12."""
    begun = Counter(line.call_id for line in one.probes() if line.what == "begin")
    rows = {row["id"]: row for row in one.query("SELECT * FROM tool_call")}
    assert begun, "no probe has run"
    assert max(begun.values()) == 1, f"started twice: {begun.most_common(3)}"
    for call_id in begun:
        assert rows[call_id]["state"] in ("done", "unknown"), f"{call_id} has run and is {rows[call_id]['state']}"
    # What was finished and kept is never asked of the tool again under another id either, except by the model itself.
    markers = Counter(line.marker for line in one.probes() if line.what == "begin")
    kept = {orjson.loads(row["args"]).get("marker") for row in rows.values() if row["state"] == "done"}
    repeated = [marker for marker, times in markers.items() if times > 1 and marker in kept]
    assert not repeated, f"done, and done again: {repeated}"


COMMAND = "sh -c 'sleep 60; echo late > late.txt' & setsid sleep 61 & echo begun > begun.txt; sleep 62"


async def test_the_children_of_a_killed_service_are_gone_before_the_next_attempt(
    service: ServiceFactory, model: ModelServer, tmp_path: Path
) -> None:
    """CP-15: the process dies while a command works; its children die too, and the call is unknown."""
    workspace = tmp_path / "workspace"
    one = service({"tools.exec.security": "full", "agents.main.workspace": str(workspace)})
    model.on("work", reply_calls(("x", "exec", {"command": COMMAND})), reply_text("I see"))
    await one.up()
    run_id = await one.run("work [s:a]", "a")
    await until((workspace / "begun.txt").exists, "the command has begun")
    children = psutil.Process(one.pid).children(recursive=True)
    assert len(children) >= 4, children
    one.kill()
    await until(lambda: not any(child.is_running() for child in children), "the children are gone")
    await one.up()
    record = await one.ended(run_id)
    assert (record["status"], record["attempt"]) == ("succeeded", 2)
    results = [part for entry in await one.transcript("a") for part in entry["parts"] if part["type"] == "toolResult"]
    assert [part["isError"] for part in results] == [True] and "not known" in results[0]["content"]
    assert not (workspace / "late.txt").exists()
    await check_case(one, [run_id], sessions=["a"])


async def test_a_group_whose_guard_could_not_act_is_killed_by_the_next_start(
    service: ServiceFactory, model: ModelServer, tmp_path: Path
) -> None:
    """The guard is stopped when the service dies, so nobody but the recorded group can end the children."""
    workspace = tmp_path / "workspace"
    one = service({"tools.exec.security": "full", "agents.main.workspace": str(workspace)})
    model.on("work", reply_calls(("x", "exec", {"command": "echo > begun.txt; sleep 60"})), reply_text("I see"))
    await one.up()
    run_id = await one.run("work [s:a]", "a")
    await until((workspace / "begun.txt").exists, "the command has begun")
    [guard] = psutil.Process(one.pid).children()
    children = [guard, *guard.children(recursive=True)]
    os.kill(guard.pid, signal.SIGSTOP)
    one.kill()
    assert guard.status() == psutil.STATUS_STOPPED, "the guard was to be out of action"
    await one.up()
    assert (await one.ended(run_id))["status"] == "succeeded"
    await until(lambda: not any(child.is_running() for child in children), "the children are gone")
    await check_case(one, [run_id], sessions=["a"])
