"""A model that goes round in circles is stopped after a documented number of rounds, and the run says why."""

from __future__ import annotations

from itertools import count

from tests.kit.calls import answers, ends_of, told
from tests.kit.model_server import ModelServer, Request, Step, reply_calls, reply_text
from tests.kit.rules import check_case
from tests.kit.service import ProbeService, ServiceFactory

REPEATS = 10
"""`limits.tool_repeats`"""


async def test_a_tool_that_does_not_exist_is_answered_and_not_for_ever(probe_service: ProbeService) -> None:
    """GUARD-03"""
    one, model = probe_service, probe_service.model
    numbers = count()
    model.on("no such", lambda _: reply_calls(("c1", "nosuch", {"try": next(numbers)}), words="I try"))
    run_id = await one.run("no such [s:guard-3]", "guard-3")
    record = await one.ended(run_id)
    assert (record["status"], record["error"]["code"]) == ("failed", "tool-loop")
    assert len(model.requests_of("guard-3")) == REPEATS
    contents = [content for _, content in answers(model.requests_of("guard-3")[-1])]
    assert all("no tool of this name" in content and "probe" in content for content in contents)
    assert {(end["outcome"], end["skipped"]) for end in ends_of(await told(one, run_id))} == {("error", True)}
    await check_case(one, [run_id], sessions=["guard-3"])


async def test_the_same_call_with_the_same_result_ends_the_run(probe_service: ProbeService) -> None:
    """GUARD-04, the same arguments, however they are written."""
    one, model = probe_service, probe_service.model
    forms = count()

    def again(_: Request) -> list[Step]:
        args = '{"marker": "same", "size": 0}' if next(forms) % 2 else '{"size":0,"marker":"same"}'
        return reply_calls(("c1", "probe", args))

    model.on("the same", again)
    run_id = await one.run("the same [s:guard-4]", "guard-4")
    record = await one.ended(run_id)
    assert (record["status"], record["error"]["code"]) == ("failed", "tool-loop")
    assert len(model.requests_of("guard-4")) == REPEATS
    await check_case(one, [run_id], sessions=["guard-4"])


async def test_other_arguments_each_time_end_at_the_limit_of_rounds(
    service: ServiceFactory, model: ModelServer
) -> None:
    """GUARD-04, slightly different arguments; the rounds of all attempts count."""
    numbers = count()
    model.on("round and round", lambda _: reply_calls(("c1", "probe", {"marker": f"r{next(numbers)}"})))
    async with service({"limits.tool_rounds": 25}, probes=True) as one:
        run_id = await one.run("round and round [s:a]", "a")
        record = await one.ended(run_id)
        assert (record["status"], record["error"]["code"]) == ("failed", "tool-rounds-exhausted")
        assert "25 times" in record["error"]["message"]
        assert len(model.requests_of("a")) == 25
        await check_case(one, [run_id], sessions=["a"])


async def test_a_run_in_circles_can_be_stopped(probe_service: ProbeService) -> None:
    one, model = probe_service, probe_service.model
    numbers = count()
    model.on("circle", lambda _: reply_calls(("c1", "probe", {"marker": f"c{next(numbers)}", "seconds": 0.05})))
    run_id = await one.run("circle [s:guard-5]", "guard-5")
    await model.until(lambda: len(model.requests_of("guard-5")) >= 3, "some rounds")
    await one.abort(run_id)
    assert (await one.ended(run_id))["status"] == "cancelled"
    await check_case(one, [run_id], sessions=["guard-5"])


async def test_an_empty_answer_is_asked_for_again_without_tools(probe_service: ProbeService) -> None:
    """SILENT-04, the part that tools have in it: no tool is offered or repeated for the last word."""
    one, model = probe_service, probe_service.model
    model.on(
        "empty after", reply_calls(("c1", "probe", {"marker": "silent-4"})), reply_text("  "), reply_text("the answer")
    )
    run_id = await one.run("empty after [s:silent-4]", "silent-4")
    assert (await one.ended(run_id))["status"] == "succeeded"
    requests = model.requests_of("silent-4")
    assert [bool(request.body.get("tools")) for request in requests] == [True, True, False]
    assert [line.what for line in one.probes() if line.marker == "silent-4"] == ["begin", "end"]
    await check_case(one, [run_id], sessions=["silent-4"])
