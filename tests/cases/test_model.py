"""What odd model servers send, end to end: the right tools run with the right arguments, or the run says why not."""

from __future__ import annotations

import orjson
import pytest

from tests.kit.calls import answers, ends_of, results, shown, told
from tests.kit.gauges import until_quiet
from tests.kit.model_server import (
    ModelServer,
    Reply,
    Step,
    call_piece,
    data,
    delay_headers,
    delta,
    done,
    end,
    finish,
    pause,
    raw,
    recut,
    reply_calls,
    reply_text,
    reset,
    role,
    stay_open,
    text,
    thinking,
    tool_call,
    usage,
)
from tests.kit.rules import check_case, reply_texts
from tests.kit.service import ProbeService, ServiceFactory

A, B = {"marker": "of a"}, {"marker": "of b"}
HALVES = [orjson.dumps(args).decode() for args in (A, B)]

STYLES: dict[str, list[Step]] = {
    "two on one index": [tool_call("a", "probe", A, 0), tool_call("b", "probe", B, 0)],
    "no index": [tool_call("a", "probe", A, None, pieces=3), tool_call("b", "probe", B, None, pieces=2)],
    "both styles": [tool_call("a", "probe", A, 0), tool_call("b", "probe", B, None, pieces=2)],
    "interleaved": [
        call_piece(0, call_id="a", name="probe"),
        call_piece(1, call_id="b", name="probe"),
        *(call_piece(at % 2, args=HALVES[at % 2][at // 2 * 6 : at // 2 * 6 + 6]) for at in range(8)),
    ],
    "tail on another index": [
        tool_call("a", "probe", A, 0),
        call_piece(0, call_id="b", name="probe", args=""),
        call_piece(1, args=HALVES[1][:4]),
        call_piece(1, args=HALVES[1][4:]),
    ],
}


@pytest.mark.parametrize("style", STYLES)
async def test_two_calls_are_two_executions_with_their_own_arguments(probe_service: ProbeService, style: str) -> None:
    """MODEL-05 to -08"""
    one, model, session = probe_service, probe_service.model, f"model-{style.replace(' ', '-')}"
    model.on(session, [*STYLES[style], finish("tool_calls"), done()], reply_text("fine"))
    run_id = await one.run(f"x [s:{session}]", session)
    assert (await one.ended(run_id))["status"] == "succeeded"
    assert [content for _, content in answers(model.requests_of(session)[1])] == ["of a", "of b"]
    assert [part["content"] for part in await results(one, session)] == ["of a", "of b"]
    await check_case(one, [run_id], sessions=[session])


@pytest.mark.parametrize("how", ["end", "reset"])
async def test_a_call_whose_answer_has_no_end_is_not_run(probe_service: ProbeService, how: str) -> None:
    """MODEL-02"""
    one, model, session = probe_service, probe_service.model, f"model-no-end-{how}"
    model.on(session, [tool_call("c1", "probe", {"marker": session}), end() if how == "end" else reset()])
    run_id = await one.run(f"x [s:{session}]", session)
    record = await one.ended(run_id)
    assert record["status"] == "failed" and record["error"]["retryable"]
    assert record["error"]["code"] == "provider-bad-response"
    assert not [line for line in one.probes() if line.marker == session]
    await check_case(one, [run_id], sessions=[session])


async def test_text_without_an_end_is_kept_as_incomplete(probe_service: ProbeService) -> None:
    """MODEL-01, without retries; either of finish reason and end mark completes an answer."""
    one, model = probe_service, probe_service.model
    model.on("cut text", [text(*"abcde"), end()])
    run_id = await one.run("cut text [s:model-1]", "model-1")
    assert (await one.ended(run_id))["error"]["code"] == "provider-bad-response"
    item = (await one.transcript("model-1"))[-1]
    assert (item["aborted"], item["stopReason"], item["parts"][0]["text"]) == (True, "error", "abcde")
    runs = [run_id]
    for name, tail in (("reason", finish()), ("mark", done())):
        model.on(f"only {name}", [text("whole"), tail, end()])
        runs.append(await one.run(f"only {name} [s:model-1]", "model-1"))
        assert reply_texts(await one.ended(runs[-1])) == ["whole"]
    await check_case(one, runs, sessions=["model-1"])


@pytest.mark.parametrize("args", ['{"marker": "cut-whole"}', '{"marker": "cut-ha'], ids=["valid", "cut"])
async def test_no_call_of_an_answer_that_the_output_limit_cut_is_run(probe_service: ProbeService, args: str) -> None:
    """MODEL-03: also when what came of the arguments happens to be valid."""
    one, model = probe_service, probe_service.model
    session = f"model-3-{len(args)}"
    cut: Reply = [tool_call("c0", "probe", {"marker": "cut-before"}), tool_call("c1", "probe", args, 1)]
    good = reply_calls(("c2", "probe", {"marker": f"good-{session}"}))
    model.on(session, [*cut, finish("length"), done()], good, reply_text("fine"))
    run_id = await one.run(f"x [s:{session}]", session)
    record = await one.ended(run_id)
    assert (record["status"], reply_texts(record)) == ("succeeded", ["fine"])
    markers = {line.marker for line in one.probes()}
    assert f"good-{session}" in markers and not {"cut-before", "cut-whole", "cut-ha"} & markers
    first = [content for _, content in answers(model.requests_of(session)[1])]
    assert len(first) >= 1 and all("output limit" in content for content in first)
    await check_case(one, [run_id], sessions=[session])


async def test_cuts_again_and_again_end_the_run_with_the_limit_named(probe_service: ProbeService) -> None:
    """MODEL-04"""
    one, model = probe_service, probe_service.model
    model.on("always cut", [tool_call("c1", "probe", '{"marker": "al'), finish("length"), done()])
    run_id = await one.run("always cut [s:model-4]", "model-4")
    record = await one.ended(run_id)
    assert (record["status"], record["error"]["code"]) == ("failed", "output-limit")
    assert "output limit" in record["error"]["message"]
    assert len(model.requests_of("model-4")) == 3, "`limits.cut_answers`"
    await check_case(one, [run_id], sessions=["model-4"])


async def test_empty_choices_null_deltas_and_a_usage_of_its_own(probe_service: ProbeService) -> None:
    """MODEL-09"""
    one, model = probe_service, probe_service.model
    first = data({"id": "x", "choices": [], "prompt_filter_results": [{}]})
    nothing = data({"id": "x", "choices": [{"index": 0, "delta": None, "finish_reason": None}]})
    model.on("odd chunks", [first, role(), text("a"), nothing, role(), text("b"), finish(), usage(12, 7), done()])
    run_id = await one.run("odd chunks [s:model-9]", "model-9")
    record = await one.ended(run_id)
    assert reply_texts(record) == ["ab"]
    assert (record["usage"]["inputTokens"], record["usage"]["outputTokens"]) == (12, 7)
    await check_case(one, [run_id], sessions=["model-9"])


SEPARATORS = "a\u2028b\u2029c\u0085d\x0be\x0cf"
WORDS = "日本語 и по-русски 👩🏽‍🚀 ok"


async def test_separators_and_cut_characters_reach_the_tool_the_stream_and_the_next_request(
    probe_service: ProbeService,
) -> None:
    """MODEL-10, MODEL-11: unescaped separators, and every byte a chunk of its own."""
    one, model = probe_service, probe_service.model
    marker = SEPARATORS.replace("\x0b", "").replace("\x0c", "")  # JSON takes control characters only escaped
    args = orjson.dumps({"marker": f"{marker} {WORDS}"}).decode()
    said: list[Step] = [recut(text(f"{marker} {WORDS}"), tool_call("c1", "probe", args), finish("tool_calls"), done())]
    model.on("characters", said, reply_text(WORDS))
    run_id = await one.run("characters [s:model-10]", "model-10")
    record = await one.ended(run_id)
    assert reply_texts(record) == [WORDS]
    request = model.requests_of("model-10")[1]
    assert request.messages[-2]["content"] == f"{marker} {WORDS}"
    assert request.messages[-2]["tool_calls"][0]["function"]["arguments"] == args
    assert any(line.marker == f"{marker} {WORDS}" for line in one.probes()), "the tool got them unchanged"
    checked = await told(one, run_id)
    assert checked.texts[0] == f"{marker} {WORDS}" and "\ufffd" not in str(checked.texts)
    await check_case(one, [run_id], sessions=["model-10"])


@pytest.mark.parametrize("style", ["no space", "crlf", "cr", "bom", "comments"])
async def test_styles_of_event_streams(probe_service: ProbeService, style: str) -> None:
    """MODEL-12, with a call and an answer in each."""
    one, model, session = probe_service, probe_service.model, f"model-12-{style.replace(' ', '-')}"

    def styled(*steps: Step) -> list[Step]:
        whole = b"".join(chunk for step in steps for chunk in step.chunks)  # type: ignore[union-attr]
        match style:
            case "no space":
                return [raw(whole.replace(b"data: ", b"data:"))]
            case "crlf":
                return [raw(whole.replace(b"\n", b"\r\n"))]
            case "cr":
                return [raw(whole.replace(b"\n", b"\r"))]
            case "bom":
                return [raw(b"\xef\xbb\xbf" + whole)]
            case _:
                return [raw(whole.replace(b"data: ", b": keep-alive\n\n: x\ndata: "))]

    call = styled(tool_call("c1", "probe", {"marker": session}), finish("tool_calls"), done())
    model.on(session, call, styled(text("one ", "two"), finish(), done()))
    run_id = await one.run(f"x [s:{session}]", session)
    assert reply_texts(await one.ended(run_id)) == ["one two"]
    assert [content for _, content in answers(model.requests_of(session)[1])] == [session]
    await check_case(one, [run_id], sessions=[session])


@pytest.mark.parametrize("behind", ["open", "reset"])
async def test_nothing_behind_the_end_mark_delays_or_spoils_an_answer(probe_service: ProbeService, behind: str) -> None:
    """MODEL-13"""
    one, model, session = probe_service, probe_service.model, f"model-13-{behind}"
    model.on(session, [text("whole"), finish(), done(), stay_open(60) if behind == "open" else reset()])
    run_id = await one.run(f"x [s:{session}]", session)
    assert reply_texts(await one.ended(run_id, 10_000)) == ["whole"]
    await check_case(one, [run_id], sessions=[session])


async def test_long_thinking_is_no_silence_and_the_limit_can_be_moved(
    service: ServiceFactory, model: ModelServer
) -> None:
    """MODEL-15: thoughts count as content; a longer limit holds; comments and empty deltas do not count."""
    thoughts: list[Step] = [step for n in range(12) for step in (thinking(f"{n} "), pause(0.1))]
    model.on("think long", [*thoughts, text("thought"), finish(), done()])
    model.on("be silent", [role(), pause(1.2), text("at last"), finish(), done()])
    empty: list[Step] = [step for _ in range(30) for step in (delta({}), pause(0.1))]
    model.on("say nothing", [role(), *empty, text("late"), finish(), done()])
    async with service({"providers.test.timeout_seconds": 0.6}) as one:
        run_id = await one.run("think long [s:a]", "a")
        record = await one.ended(run_id)
        assert reply_texts(record) == ["thought"], record
        quiet = await one.run("say nothing [s:a]", "a")
        assert (await one.ended(quiet))["error"]["code"] == "model-idle-timeout"
        await check_case(one, [run_id, quiet], sessions=["a"])
    async with service({"providers.test.timeout_seconds": 10}) as one:
        run_id = await one.run("be silent [s:b]", "b")
        assert reply_texts(await one.ended(run_id)) == ["at last"]
        await check_case(one, [run_id], sessions=["b"])


async def test_a_slow_first_byte_is_waited_for(service: ServiceFactory, model: ModelServer) -> None:
    """MODEL-16: no shorter limit of the HTTP client's own, and no second request."""
    model.on("wait for it", [delay_headers(12), *reply_text("here")])
    async with service({"providers.test.timeout_seconds": 30}) as one:
        run_id = await one.run("wait for it [s:a]", "a")
        assert reply_texts(await one.ended(run_id)) == ["here"]
        assert len(model.requests_of("a")) == 1
        await check_case(one, [run_id], sessions=["a"])


async def test_an_error_in_the_stream_behind_a_tool_round_is_no_answer(probe_service: ProbeService) -> None:
    """END-09 without retries: the tool ran once, and there is no empty entry."""
    one, model = probe_service, probe_service.model
    broken = [text("so far"), data({"error": {"message": "upstream broke", "code": 502}}), end()]
    model.on("break later", reply_calls(("c1", "probe", {"marker": "end-9"}), words="looking"), broken)
    run_id = await one.run("break later [s:end-9]", "end-9")
    assert (await one.ended(run_id))["status"] == "failed"
    assert [line.marker for line in one.probes() if line.marker == "end-9"] == ["end-9"] * 2
    entries = await one.transcript("end-9")
    assert all(item["parts"] for item in entries)
    await check_case(one, [run_id], sessions=["end-9"])
    await until_quiet(one)


async def test_a_tool_that_fails_in_the_middle_ends_nothing(probe_service: ProbeService) -> None:
    """END-01 with a tool: one terminal event, and it is that of the run."""
    one, model = probe_service, probe_service.model
    for how in ("raise", "exit", "interrupt", "cancel"):
        session = f"end-1-{how}"
        model.on(session, reply_calls(("c1", "probe", {"marker": how, "how": how})), reply_text("fine"))
        run_id = await one.run(f"x [s:{session}]", session)
        assert (await one.ended(run_id))["status"] == "succeeded"
        [ended] = ends_of(await told(one, run_id))
        assert (ended["outcome"], ended["isError"]) == ("error", True)
        assert "itself" in shown(ended)
        await check_case(one, [run_id], sessions=[session])
