"""Tools as clients and operators see them: what is offered, what streams and snapshots show, where files lie."""

from __future__ import annotations

import pytest

from tests.kit.calls import answers, calls_of, ends_of, results, shown, told
from tests.kit.gauges import until
from tests.kit.model_server import ModelServer, reply_calls, reply_text, thinking
from tests.kit.problems import check_problem
from tests.kit.rules import check_case, reply_texts
from tests.kit.service import ProbeService, ServiceFactory

BUILT_IN = ["read", "write", "edit", "list", "search_files", "exec", "web_fetch"]


async def test_denied_tools_are_not_offered_and_not_run(service: ServiceFactory, model: ModelServer) -> None:
    model.on("write it", reply_calls(("c1", "write", {"path": "x", "content": "y"})), reply_text("fine"))
    async with service({"tools.deny": "exec,WRITE", "tools.allow": "*"}) as one:
        listed = {item["name"]: item["offered"] for item in (await one.get("/api/v1/tools"))["items"]}
        assert listed == {name: name not in ("exec", "write") for name in BUILT_IN}
        run_id = await one.run("write it [s:a]", "a")
        assert (await one.ended(run_id))["status"] == "succeeded"
        offered = [tool["function"]["name"] for tool in model.requests_of("a")[0].body["tools"]]
        assert offered == [name for name in BUILT_IN if listed[name]]
        [end] = ends_of(await told(one, run_id))
        assert (end["outcome"], end["skipped"]) == ("error", True)
        assert not (one.state_dir / "agents" / "main" / "workspace" / "x").exists()
        await check_case(one, [run_id], sessions=["a"])


async def test_no_tool_at_all_is_no_tool_in_the_request(service: ServiceFactory, model: ModelServer) -> None:
    async with service({"tools.deny": "*"}) as one:
        run_id = await one.run("hello [s:a]", "a")
        assert (await one.ended(run_id))["status"] == "succeeded"
        assert "tools" not in model.requests_of("a")[0].body
        assert not (one.state_dir / "agents").exists(), "nobody needs a workspace"


async def test_files_lie_in_the_workspace_of_the_agent(service: ServiceFactory, model: ModelServer) -> None:
    calls = [("c1", "write", {"path": "notes/a.txt", "content": "one"}), ("c2", "read", {"path": "notes/a.txt"})]
    for agent in ("main", "other"):
        model.on(f"[s:{agent}]", reply_calls(*calls), reply_text("fine"))
    one = service({"agents.other.workspace": "elsewhere", "agents.main.description": "x"})
    async with one:
        for agent in ("main", "other"):
            run_id = await one.run(f"keep this [s:{agent}]", f"agent:{agent}:x", agent=agent)
            record = await one.ended(run_id)
            assert record["status"] == "succeeded", record
            assert [part["content"] for part in await results(one, f"agent:{agent}:x")] == [
                "notes/a.txt: created, 3 bytes.", "one",
            ]  # fmt: skip
        assert (one.state_dir / "agents" / "main" / "workspace" / "notes" / "a.txt").read_text() == "one"
        assert (one.state_dir / "agents" / "main" / "workspace" / "README.md").exists()
        assert (one.state_dir.parent / "elsewhere" / "notes" / "a.txt").read_text() == "one"


async def test_a_workspace_that_cannot_be_used_ends_the_run_with_its_reason(
    service: ServiceFactory, model: ModelServer
) -> None:
    one = service({"agents.main.workspace": "a-file"})
    one.state_dir.parent.mkdir(parents=True, exist_ok=True)
    (one.state_dir.parent / "a-file").write_text("x")
    async with one:
        run_id = await one.run("hello [s:a]", "a")
        record = await one.ended(run_id)
        assert (record["status"], record["error"]["code"]) == ("failed", "workspace-unusable")
        assert "no folder" in record["error"]["message"] and not model.requests


async def test_a_summary_of_tools_has_neither_arguments_nor_results(probe_service: ProbeService) -> None:
    one, model = probe_service, probe_service.model
    model.on("summary", reply_calls(("c1", "probe", {"marker": "detail", "show": ["detail\n"]})), reply_text("fine"))
    run_id = await one.run("summary [s:summary]", "summary")
    await one.ended(run_id)
    async with await one.stream(run_id, tools="summary") as stream:
        brief = [event for event in await stream.collect_until_done() if event.stream == "tool"]
    whole = [event for event in (await told(one, run_id)).events if event.stream == "tool"]
    assert [(event.id, event.phase) for event in brief] == [(event.id, event.phase) for event in whole]
    assert "detail" not in "".join(event.raw for event in brief) and "detail" in "".join(event.raw for event in whole)
    assert [event.payload["outcome"] for event in brief if event.phase == "end"] == ["ok"]
    answer = await one.request("GET", f"/api/v1/runs/{run_id}/events?tools=none")
    check_problem(answer, 422, "validation-failed", parameter="tools")


async def test_a_snapshot_tells_the_calls_that_are_open(probe_service: ProbeService) -> None:
    one, model = probe_service, probe_service.model
    calls = [("c1", "probe", {"marker": "snap-1"}), ("c2", "probe", {"marker": "snap-2", "seconds": 30})]
    model.on("snap", reply_calls(*calls, words="looking"))
    run_id = await one.run("snap [s:snap]", "snap")
    await until(lambda: any(line[:1] + line[2:] == ("end", "snap-1") for line in one.probes()), "the first has ended")
    await until(
        lambda: (
            one.query("SELECT count(*) AS n FROM tool_call WHERE run_id = ? AND state = 'done'", run_id)[0]["n"] == 1
        ),
        "it is kept",
    )
    async with await one.stream(run_id, after="900000") as stream:
        snapshot = await stream.until(lambda event: event.event == "snapshot", 10)
    [run] = snapshot.payload["runs"]
    [call] = run["openToolCalls"]
    assert (call["name"], call["args"]["marker"], call["state"]) == ("probe", "snap-2", "started")
    await one.abort(run_id)
    await one.ended(run_id)


async def test_updates_are_whole_lines_in_order_and_bounded(probe_service: ProbeService) -> None:
    one, model = probe_service, probe_service.model
    lines = [f"line {n}\n" for n in range(3)] + ["half a li", "ne\n", "z " * 10_000 + "\n"]
    model.on("show", reply_calls(("c1", "probe", {"marker": "m", "show": lines, "seconds": 0.7})), reply_text("fine"))
    run_id = await one.run("show [s:show]", "show")
    await one.ended(run_id)
    [events] = calls_of(await told(one, run_id)).values()
    shown_text = "".join(shown(event) for event in events if event["phase"] == "update")
    assert shown_text.startswith("line 0\nline 1\nline 2\nhalf a line\nz z z") and len(shown_text) <= 8_000
    assert sum(event["phase"] == "update" for event in events) <= 4


async def test_what_an_attempt_has_used_before_a_kill_counts(service: ServiceFactory, model: ModelServer) -> None:
    """Usage and rounds are those of the run, not of its last attempt."""
    model.on("twice", reply_calls(("c1", "probe", {"marker": "use", "seconds": 60})), reply_text("fine"))
    one = service(probes=True)
    await one.up()
    run_id = await one.run("twice [s:a]", "a")
    await until(lambda: bool(one.probes()), "the tool is at work")
    await one.restart()
    record = await one.ended(run_id)
    assert (record["status"], record["attempt"], record["usage"]["modelCalls"]) == ("succeeded", 2, 2)
    assert record["usage"]["inputTokens"] == 20
    steps = [event.payload["step"] for event in (await told(one, run_id)).events if event.phase == "model"]
    assert steps == [1, 2]


async def test_thinking_before_a_call_is_kept_and_the_call_answered(probe_service: ProbeService) -> None:
    one, model = probe_service, probe_service.model
    call = reply_calls(("c1", "probe", {"marker": "thought"}), words="so")
    model.on("think first", [thinking("let me see"), *call], reply_text("fine"))
    run_id = await one.run("think first [s:thought]", "thought", reasoning="stream")
    assert reply_texts(await one.ended(run_id)) == ["fine"]
    parts = (await one.transcript("thought"))[1]["parts"]
    assert [part["type"] for part in parts] == ["thinking", "text", "toolCall"]
    assert answers(model.requests_of("thought")[1]) == [("c1", "thought")]
    await check_case(one, [run_id], sessions=["thought"])


@pytest.mark.parametrize("size", [70_000, 5_000_000])
async def test_large_arguments_are_cut_in_events_and_whole_or_refused_for_the_tool(
    probe_service: ProbeService, size: int
) -> None:
    one, model, session = probe_service, probe_service.model, f"large-{size}"
    model.on(session, reply_calls(("c1", "probe", {"marker": "big", "show": ["x" * size]})), reply_text("fine"))
    run_id = await one.run(f"x [s:{session}]", session)
    assert (await one.ended(run_id))["status"] == "succeeded"
    [events] = calls_of(await told(one, run_id)).values()
    assert events[0]["argsTruncated"] is True and len(str(events[0])) < 65_536
    assert events[-1]["outcome"] == ("ok" if size < 100_000 else "error")
    await check_case(one, [run_id], sessions=[session])
