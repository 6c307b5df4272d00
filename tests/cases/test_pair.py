"""Every call has exactly one result, in the order of the calls, whatever happens to tools, model or process.

The model is strict: it answers 400 to a request in which calls and results do not pair, as real providers do.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.kit.calls import answers, calls_of, ends_of, results, shown, told
from tests.kit.gauges import until
from tests.kit.model_server import (
    ModelServer,
    call_piece,
    done,
    error,
    finish,
    reply_calls,
    reply_text,
    reset,
    text,
    tool_call,
)
from tests.kit.rules import check_case, reply_texts
from tests.kit.service import ProbeService, ServiceFactory


async def begun(one: ProbeService, *markers: str) -> None:
    """Until these probes are at work."""
    wanted = set(markers)
    await until(lambda: wanted <= {line.marker for line in one.probes() if line.what == "begin"}, f"{wanted} at work")


async def ended_probes(one: ProbeService, *markers: str) -> None:
    """Until these probes have returned."""
    wanted = set(markers)
    await until(lambda: wanted <= {line.marker for line in one.probes() if line.what == "end"}, f"{wanted} ended")


async def test_a_stopped_tool_is_answered_and_the_session_goes_on(probe_service: ProbeService) -> None:
    """PAIR-01"""
    one, model = probe_service, probe_service.model
    model.on("slow one", reply_calls(("c1", "probe", {"marker": "pair-1", "seconds": 10})), reply_text("never"))
    run_id = await one.run("slow one [s:pair-1]", "pair-1")
    await begun(one, "pair-1")
    await one.abort(run_id)
    assert (await one.ended(run_id))["status"] == "cancelled"
    model.on("and now", reply_text("fine"))
    later = [await one.run(f"and now {number} [s:pair-1]", "pair-1") for number in range(4)]
    assert [(await one.ended(name))["status"] for name in later] == ["succeeded"] * 4
    assert [part["isError"] for part in await results(one, "pair-1")] == [True]
    assert "stopped" in answers(model.requests_with("and now 0")[0])[0][1]
    await check_case(one, [run_id, *later], sessions=["pair-1"])


async def test_results_that_were_in_stay_and_open_calls_are_answered(probe_service: ProbeService) -> None:
    """PAIR-02: two of four had returned when the stop came."""
    one, model = probe_service, probe_service.model
    calls = [(f"c{n}", "probe", {"marker": f"pair-2-{n}", "seconds": 0.05 if n % 2 else 10}) for n in range(4)]
    model.on("four of them", reply_calls(*calls))
    run_id = await one.run("four of them [s:pair-2]", "pair-2")
    await ended_probes(one, "pair-2-1", "pair-2-3")
    await until(
        lambda: len(one.query("SELECT id FROM tool_call WHERE run_id = ? AND state = 'done'", run_id)) == 2, "two done"
    )
    await one.abort(run_id)
    await one.ended(run_id)
    model.on("after it", reply_text("fine"))
    later = await one.run("after it [s:pair-2]", "pair-2")
    assert (await one.ended(later))["status"] == "succeeded"
    [(_, first), (_, second), (_, third), (_, fourth)] = answers(model.requests_with("after it")[0])
    assert (second, fourth) == ("pair-2-1", "pair-2-3") and "stopped" in first and "stopped" in third
    outcomes = [end["outcome"] for end in ends_of(await told(one, run_id))]
    assert outcomes == ["aborted", "ok", "aborted", "ok"]
    await check_case(one, [run_id, later], sessions=["pair-2"])


async def test_a_stop_between_the_answer_and_the_first_start_runs_no_tool(probe_service: ProbeService) -> None:
    """PAIR-03"""
    one, model = probe_service, probe_service.model
    calls = [(f"c{n}", "probe", {"marker": f"pair-3-{n}", "prepare": 5}) for n in range(2)]
    model.on("not yet", reply_calls(*calls))
    run_id = await one.run("not yet [s:pair-3]", "pair-3")
    await until(lambda: bool(one.query("SELECT id FROM tool_call WHERE run_id = ?", run_id)), "the calls are planned")
    await one.abort(run_id)
    assert (await one.ended(run_id))["status"] == "cancelled"
    assert not [line for line in one.probes() if line.marker.startswith("pair-3")]
    checked = await told(one, run_id)
    assert [(end["outcome"], end["skipped"]) for end in ends_of(checked)] == [("aborted", True)] * 2
    model.on("then this", reply_text("fine"))
    later = await one.run("then this [s:pair-3]", "pair-3")
    assert (await one.ended(later))["status"] == "succeeded"
    await check_case(one, [run_id, later], sessions=["pair-3"])


async def test_a_connection_that_breaks_inside_a_call_leaves_nothing_of_it(probe_service: ProbeService) -> None:
    """PAIR-04"""
    one, model = probe_service, probe_service.model
    broken = [text("let me "), call_piece(index=0, call_id="c1", name="probe", args='{"marker": "pai'), reset()]
    model.on("break off", broken)
    run_id = await one.run("break off [s:pair-4]", "pair-4")
    record = await one.ended(run_id)
    assert (record["status"], record["error"]["code"]) == ("failed", "provider-bad-response")
    assert not calls_of(await told(one, run_id))
    model.on("again", reply_text("fine"))
    later = await one.run("again [s:pair-4]", "pair-4")
    assert (await one.ended(later))["status"] == "succeeded"
    assert all("tool_calls" not in item for item in model.requests_with("again")[0].messages)
    await check_case(one, [run_id, later], sessions=["pair-4"])


@pytest.mark.parametrize("resume", [True, False])
async def test_a_kill_during_a_tool_leaves_a_paired_history(
    service: ServiceFactory, model: ModelServer, resume: bool
) -> None:
    """PAIR-05"""
    model.on("slow", reply_calls(("c1", "probe", {"marker": "pair-5", "seconds": 60})), reply_text("I see"))
    one = service({"recovery.resume": resume}, probes=True)
    await one.up()
    run_id = await one.run("slow [s:a]", "a")
    await begun(one, "pair-5")
    await one.restart()
    record = await one.ended(run_id)
    assert record["status"] == ("succeeded" if resume else "failed")
    if not resume:
        assert record["error"]["code"] == "interrupted"
    [result] = await results(one, "a")
    assert result["isError"] and "not known" in result["content"]
    [end] = ends_of(await told(one, run_id))
    assert end["outcome"] == "unknown"
    model.on("next", reply_text("fine"))
    later = await one.run("next [s:a]", "a")
    assert (await one.ended(later))["status"] == "succeeded"
    assert answers(model.requests_with("next")[0])[0][1] == result["content"], "the model sees what the history shows"
    assert [line.what for line in one.probes()] == ["begin"], "it was not started again"
    await check_case(one, [run_id, later], sessions=["a"])


async def test_real_results_are_never_replaced(probe_service: ProbeService) -> None:
    """PAIR-06: different durations, fifty times."""
    one, model = probe_service, probe_service.model
    durations = (0.3, 0.01, 0.2, 0.05)

    async def batch(number: int) -> str:
        session = f"pair-6-{number}"
        calls = [(f"c{n}", "probe", {"marker": f"m-{number}-{n}", "seconds": s}) for n, s in enumerate(durations)]
        model.on(f"batch {number}.", reply_calls(*calls), reply_text("fine"))
        run_id = await one.run(f"batch {number}. [s:{session}]", session)
        assert (await one.ended(run_id))["status"] == "succeeded"
        markers = [f"m-{number}-{n}" for n in range(4)]
        assert [content for _, content in answers(model.requests_of(session)[1])] == markers
        assert [(end["outcome"], shown(end)) for end in ends_of(await told(one, run_id))] == [
            ("ok", marker) for marker in markers
        ]
        assert [part["content"] for part in await results(one, session)] == markers
        return run_id

    runs = [run for start in range(0, 50, 10) for run in await asyncio.gather(*(batch(start + n) for n in range(10)))]
    await check_case(one, runs)


async def test_results_stand_in_the_order_of_the_calls_with_nothing_between(probe_service: ProbeService) -> None:
    """PAIR-07: the second fails, and they finish in reverse."""
    one, model = probe_service, probe_service.model
    calls = [
        ("c1", "probe", {"marker": "first", "seconds": 0.2}),
        ("c2", "probe", {"marker": "second", "seconds": 0.1, "how": "raise"}),
        ("c3", "probe", {"marker": "third"}),
    ]
    model.on("three", reply_calls(*calls, words="looking"), reply_text("fine"))
    run_id = await one.run("three [s:pair-7]", "pair-7")
    await one.ended(run_id)
    request = model.requests_of("pair-7")[1]
    assert request.roles[-4:] == ["assistant", "tool", "tool", "tool"]
    assert [name for name, _ in answers(request)] == ["c1", "c2", "c3"]
    [first, second, third] = [content for _, content in answers(request)]
    assert (first, third) == ("first", "third") and "failed" in second
    finished = [line.marker for line in one.probes() if line.what == "end" and line.marker in ("first", "third")]
    assert finished[-2:] == ["third", "first"]
    await check_case(one, [run_id], sessions=["pair-7"])


async def test_two_calls_with_one_id_both_run(probe_service: ProbeService) -> None:
    """PAIR-08"""
    one, model = probe_service, probe_service.model
    same = [
        tool_call("same", "probe", {"marker": "pair-8-a"}, index=0),
        tool_call("same", "probe", {"marker": "pair-8-b"}, index=1),
    ]
    model.on("one id", [*same, finish("tool_calls"), done()], reply_text("fine"))
    run_id = await one.run("one id [s:pair-8]", "pair-8")
    assert (await one.ended(run_id))["status"] == "succeeded"
    told_back = answers(model.requests_of("pair-8")[1])
    assert [content for _, content in told_back] == ["pair-8-a", "pair-8-b"]
    assert len({name for name, _ in told_back}) == 2
    await check_case(one, [run_id], sessions=["pair-8"])


@pytest.mark.parametrize(
    ("args", "outcome"),
    [({"seconds": 30, "limit": 1}, "timed-out"), ({"how": "cancel"}, "error")],
    ids=["limit", "cancelled from inside"],
)
async def test_a_cancelled_tool_gets_its_result_and_the_run_goes_on(
    probe_service: ProbeService, args: dict[str, object], outcome: str
) -> None:
    """PAIR-09, RETRY-07"""
    one, model = probe_service, probe_service.model
    session = f"pair-9-{outcome}"
    model.on(session, reply_calls(("c1", "probe", {"marker": session, **args})), reply_text("I see"))
    run_id = await one.run(f"x [s:{session}]", session)
    record = await one.ended(run_id)
    assert (record["status"], reply_texts(record)) == ("succeeded", ["I see"])
    [end] = ends_of(await told(one, run_id))
    assert (end["outcome"], end["isError"]) == (outcome, True)
    [(_, content)] = answers(model.requests_of(session)[1])
    assert content == shown(end) == (await results(one, session))[0]["content"]
    await check_case(one, [run_id], sessions=[session])


async def test_a_failed_model_call_leaves_no_empty_message(probe_service: ProbeService) -> None:
    """PAIR-10"""
    one, model = probe_service, probe_service.model
    model.on("fail first", error(500, "broken"))
    run_id = await one.run("fail first [s:pair-10]", "pair-10")
    assert (await one.ended(run_id))["status"] == "failed"
    model.on("then", reply_text("fine"))
    later = [await one.run(f"then {n} [s:pair-10]", "pair-10") for n in range(3)]
    assert [(await one.ended(name))["status"] for name in later] == ["succeeded"] * 3
    for request in model.requests_of("pair-10"):
        assert all(item.get("content") or item.get("tool_calls") for item in request.messages)
    await check_case(one, [run_id, *later], sessions=["pair-10"])


@pytest.mark.parametrize("broken", ['{"marker": "a', "[1, 2]", '"text"', "{'marker': 1}", '{"marker": "a"} and more'])
async def test_broken_arguments_are_answered_never_run_and_never_sent_back_broken(
    probe_service: ProbeService, broken: str
) -> None:
    """PAIR-12: the strict model holds the replayed arguments to be JSON."""
    one, model = probe_service, probe_service.model
    session = f"pair-12-{abs(hash(broken))}"
    good = reply_calls(("c2", "probe", {"marker": session}))
    model.on(session, [tool_call("c1", "probe", broken), finish("tool_calls"), done()], good, reply_text("fine"))
    run_id = await one.run(f"x [s:{session}]", session)
    assert (await one.ended(run_id))["status"] == "succeeded"
    assert [line.marker for line in one.probes() if line.marker in ("a", session)] == [session, session]
    first, second = ends_of(await told(one, run_id))
    assert (first["outcome"], first["skipped"]) == ("error", True) and "JSON" in shown(first)
    assert second["outcome"] == "ok"
    await check_case(one, [run_id], sessions=[session])


async def test_ids_that_a_provider_gives_again_are_told_apart(probe_service: ProbeService) -> None:
    """A provider may count from zero in each answer; a client's ids are unique all the same."""
    one, model = probe_service, probe_service.model
    rounds = [reply_calls(("call_0", "probe", {"marker": f"again-{n}"})) for n in range(3)]
    model.on("three rounds", *rounds, reply_text("fine"))
    run_id = await one.run("three rounds [s:again]", "again")
    assert (await one.ended(run_id))["status"] == "succeeded"
    calls = calls_of(await told(one, run_id))
    assert len(calls) == 3
    assert [part["toolCallId"] for part in await results(one, "again")] == list(calls)
    assert [name for name, _ in answers(model.requests_of("again")[3])] == ["call_0"] * 3, "its own id comes back to it"
    await check_case(one, [run_id], sessions=["again"])
