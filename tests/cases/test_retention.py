"""What was kept long enough goes whole, in small steps; its id is still accounted for, and its session goes on."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from app.store.transaction.remove import remove_runs
from tests.kit.gauges import folded, until, until_quiet
from tests.kit.invariants import check_invariants
from tests.kit.model_server import ModelServer, done, finish, hold, reply_calls, role, text
from tests.kit.rules import check_plain
from tests.kit.service import Service, ServiceFactory
from tests.kit.stepped_clock import SteppedClock

OF_A_RUN = ("run", "run_text", "run_event", "tool_call", "idem")


async def gone(one: Service, *run_ids: str) -> None:
    """Until nothing of these runs is left but what the session and the ledger keep."""
    marks = ", ".join("?" for _ in run_ids)
    query = f"SELECT count(*) AS n FROM run WHERE id IN ({marks})"
    await until(lambda: one.query(query, *run_ids)[0]["n"] == 0, "the runs are gone", 60)
    for table in OF_A_RUN:
        column = "id" if table == "run" else "run_id"
        assert one.query(f"SELECT {column} FROM {table} WHERE {column} IN ({marks})", *run_ids) == [], table


async def test_an_old_run_is_gone_and_said_to_be_and_its_session_goes_on(
    service: ServiceFactory, model: ModelServer, tmp_path: Path
) -> None:
    clock = SteppedClock(tmp_path / "clock")
    model.on("look", reply_calls(("c", "list", {})))
    model.on("first", [role(), text("first"), hold("first"), finish(), done()])
    async with service({"retention.runs_days": 2}, environ=clock.environ) as one:
        held = await one.run("first [s:a]", "a", key="the-key")
        withdrawn = await one.run("never begun [s:a]", "a")
        await model.until_held("first")
        await one.abort(withdrawn)
        model.release("first")
        await one.ended(held)
        looked = await one.run("look [s:a]", "a")
        await one.ended(looked)
        old = [held, withdrawn, looked]
        await folded(one, *old)
        transcript = await one.transcript("a")
        ledger = await one.audit(sessionKey="a")
        clock.step_on(1.5)
        young = await one.run("later [s:a]", "a")
        await one.ended(young)
        await folded(one, young)
        clock.step_on(1)
        await one.restart(hard=False)
        await gone(one, *old)

        for run_id in old:
            path = f"/api/v1/runs/{run_id}"
            for method, rest in (("GET", ""), ("GET", "/wait"), ("GET", "/events"), ("POST", "/abort")):
                answer = await one.request(method, path + rest)
                assert (answer.status, answer.code) == (410, "deleted"), (method, rest, answer.body)
        unknown = await one.request("GET", "/api/v1/runs/00000000-0000-7000-8000-000000000000")
        assert (unknown.status, unknown.code) == (404, "run-not-found")
        assert [run["runId"] for run in await one.runs()] == [young]
        assert (await one.transcript("a"))[: len(transcript)] == transcript
        assert (await one.audit(sessionKey="a"))[-len(ledger) :] == ledger
        check_invariants(one, accepted=[young], removed=True)

        again = await one.run("first again [s:a]", "a", key="the-key")
        assert again != held, "the key went with its run"
        await one.ended(again)
        asked = str(model.requests[-1].body["messages"])
        assert "first [s:a]" in asked and "look [s:a]" in asked, "the model still gets what was said"
        await check_plain(one, "a")
        await until_quiet(one)


async def test_nothing_is_removed_unless_it_was_asked_for(service: ServiceFactory, tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path / "clock")
    async with service(environ=clock.environ) as one:
        run_id = await one.run("hello [s:a]", "a")
        await one.ended(run_id)
        await folded(one, run_id)
        before = await one.record(run_id)
        clock.step_on(3_000)
        await one.restart(hard=False)
        await until(lambda: one.query("SELECT count(*) AS n FROM audit")[0]["n"] == 0, "the ledger was bounded", 60)
        assert await one.record(run_id) == before
        async with await one.stream(run_id) as stream:
            assert (await stream.collect_until_done())[-1].stream == "done"


async def test_a_kill_while_runs_are_removed_leaves_each_whole_or_gone(service: ServiceFactory, tmp_path: Path) -> None:
    """CP-35"""
    clock = SteppedClock(tmp_path / "clock")
    async with service({"retention.runs_days": 1}, environ=clock.environ) as one:
        run_ids = [await one.run(f"number {number} [s:{number % 3}]", f"{number % 3}") for number in range(9)]
        for run_id in run_ids:
            await one.ended(run_id)
        await folded(one, *run_ids)
        clock.step_on(2)
        one.terminate()
        assert await one.until_exit() == 0
        one.launch("CP-35=kill@4")
        assert await one.until_exit(60) == -9
        with one.reading() as rows:
            kept = {row["id"] for row in rows("SELECT id FROM run")}
            for table in OF_A_RUN[1:]:
                assert {row["run_id"] for row in rows(f"SELECT run_id FROM {table}")} <= kept, table
        check_invariants(one, accepted=kept, removed=True)
        await one.up()
        await gone(one, *run_ids)
        for session in "012":
            await check_plain(one, session)


async def test_a_reader_in_the_middle_of_a_run_that_goes_is_told_so(
    service: ServiceFactory, model: ModelServer
) -> None:
    """It is behind by far more than any buffer, so what it has not read can only come from the log."""
    model.on("a flood", [text(*["0123456789abcdef" * 6000] * 100), finish(), done()])
    async with service() as one:
        run_id = await one.run("a flood [s:a]", "a")
        await one.ended(run_id)
        await folded(one, run_id)
        async with await one.stream(run_id, receive_buffer=2048) as stream:
            await until_quiet(one, open_streams=1, store_active_reads=0)
            assert not one.store.step(partial(remove_runs, before_ms=10**15))
            stream.widen()
            events = await stream.collect_until_done()
        assert events[-1].stream == "problem" and events[-1].payload["code"] == "deleted", events[-1]
        await until_quiet(one)


async def test_a_key_that_is_posted_again_while_its_run_goes_is_one_run(service: ServiceFactory) -> None:
    """Whatever the order of the two: the same run as before, or a new one; never a key without a run."""
    async with service() as one:
        firsts = [await one.run(f"hello {number} [s:a]", "a", key=f"key-{number}") for number in range(15)]
        for first in firsts:
            await one.ended(first)
        await folded(one, *firsts)
        for number, first in enumerate(firsts):
            ended_at = one.query("SELECT ended_at FROM run WHERE id = ?", first)[0]["ended_at"]
            again, _ = await asyncio.gather(
                one.run(f"hello {number} [s:a]", "a", key=f"key-{number}"),
                asyncio.to_thread(one.store.step, partial(remove_runs, before_ms=ended_at)),
            )
            kept = one.query("SELECT run_id FROM idem WHERE key = ?", f"key-{number}")
            assert again == first or kept == [{"run_id": again}]
            if again != first:
                await one.ended(again)
        await until_quiet(one)
