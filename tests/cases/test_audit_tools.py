"""The ledger has every call with one end and nothing of its content; keys of providers are shown nowhere."""

from __future__ import annotations

import asyncio
from collections import Counter

import orjson
import pytest

from tests.kit.calls import ends_of, told
from tests.kit.gauges import until
from tests.kit.model_server import ModelServer, error, reply_calls, reply_text
from tests.kit.rules import check_case
from tests.kit.service import ProbeService, Service, ServiceFactory

MARK = "m4rk3r"


def everywhere(one: Service, tables: tuple[str, ...]) -> str:
    """All that stands in some tables, as text."""
    with one.reading() as rows:
        return "\n".join(str(row) for table in tables for row in rows(f"SELECT * FROM {table}"))


async def test_nothing_of_the_content_stands_in_the_ledger(service: ServiceFactory, model: ModelServer) -> None:
    """AUDIT-01: marks in prompt, answer, arguments, results, tool errors, file names, tool names, provider errors."""
    calls = [
        ("c1", "probe", {"marker": f"{MARK}-result"}),
        ("c2", "probe", {"marker": f"{MARK}-failure", "how": "fail"}),
        ("c3", "probe", {"marker": f"{MARK}-raised", "how": "raise"}),
        ("c4", "read", {"path": f"{MARK}-file.txt"}),
        ("c5", f"{MARK}_tool", {f"{MARK}-key": 1}),
        ("c6", "probe", f'{{"{MARK}'),
        ("c7", "exec", {"command": f"{MARK}-command"}),
    ]
    model.on(f"{MARK}-prompt", reply_calls(*calls, words=f"{MARK}-words"), reply_text(f"{MARK}-answer"))
    model.on("broken provider", error(400, f"{MARK}-provider"))
    async with service(probes=True) as one:
        run_id = await one.run(f"{MARK}-prompt [s:a]", "a", metadata={"x": MARK}, label=MARK)
        assert (await one.ended(run_id))["status"] == "succeeded"
        failed = await one.run("broken provider [s:a]", "a")
        assert (await one.ended(failed))["status"] == "failed"
        stopped = await one.run("x [s:b]", "b")
        await one.abort(stopped, reason=f"{MARK}-reason")
        await one.ended(stopped)
        rows = await one.audit()
        assert MARK not in orjson.dumps(rows).decode()
        assert MARK not in everywhere(one, ("audit",))
        assert MARK in everywhere(one, ("transcript", "run_event")), "the marks were there to be copied"
        codes = Counter((row["action"], row.get("code")) for row in rows if row["kind"] == "tool_action")
        assert codes == {
            ("tool.start", None): 4,
            ("tool.end", "completed"): 1,
            ("tool.end", "tool-error"): 3,
            ("tool.end", "unknown-tool"): 1,
            ("tool.end", "invalid-arguments"): 1,
            ("tool.end", "not-allowed"): 1,
        }
        assert {row.get("toolName") for row in rows if row["kind"] == "tool_action"} == {"probe", "read", "exec", None}
        paged = [row["seq"] for row in await one.items("/api/v1/audit", limit=3)]
        assert paged == sorted(paged, reverse=True) and len(paged) == len(set(paged)) == len(await one.audit())
        await check_case(one, [run_id, failed], sessions=["a"])


async def test_every_started_call_has_one_end_however_it_ends(service: ServiceFactory, model: ModelServer) -> None:
    """AUDIT-02: aborted, blocked, timed out, killed; also after a restart."""
    model.on("abort me", reply_calls(("c1", "probe", {"marker": "abort", "seconds": 60})))
    blocked = [("c1", "probe", {"how": "blocked"}), ("c2", "exec", {"command": "rm -rf x"})]
    model.on("block me", reply_calls(*blocked), reply_text("I see"))
    late = {"marker": "late", "seconds": 60, "limit": 0.3}
    model.on("time me out", reply_calls(("c1", "probe", late)), reply_text("I see"))
    model.on("kill me", reply_calls(("c1", "probe", {"marker": "kill", "seconds": 60})), reply_text("I see"))
    one = service(probes=True)
    await one.up()
    aborted = await one.run("abort me [s:a]", "a")
    await until(lambda: any(line.marker == "abort" for line in one.probes()), "it is at work")
    await one.abort(aborted)
    others = [await one.run(f"{what} me{rest} [s:{what}]", what) for what, rest in (("block", ""), ("time", " out"))]
    await asyncio.gather(*(one.ended(run_id) for run_id in (aborted, *others)))
    killed = await one.run("kill me [s:k]", "k")
    await until(lambda: any(line.marker == "kill" for line in one.probes()), "it is at work")
    await one.restart()
    await one.ended(killed)
    rows = sorted(await one.audit(kind="tool_action"), key=lambda row: row["seq"])
    by_call: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        by_call.setdefault(row["toolCallRef"], []).append((row["action"], row["status"]))
    assert Counter(tuple(told) for told in by_call.values()) == {
        (("tool.start", "started"), ("tool.end", "cancelled")): 1,
        (("tool.end", "blocked"),): 2,
        (("tool.start", "started"), ("tool.end", "timed_out")): 1,
        (("tool.start", "started"), ("tool.end", "unknown")): 1,
    }
    await check_case(one, [aborted, *others, killed], sessions=["a", "k"])


KEY = "sk-very-secret-key-0123456789abcdef"


async def test_a_key_is_shown_nowhere(service: ServiceFactory, model: ModelServer, tmp_path: object) -> None:
    """AUDIT-03: the provider repeats it in its refusal, a tool returns it, the model writes it into arguments."""
    model.on("refused", error(401, f"Incorrect API key provided: {KEY}. You can find yours at x?key={KEY}"))
    model.on(
        "leak",
        reply_calls(
            ("c1", "probe", {"marker": f"got {KEY} here", "show": [f"line with {KEY}\n"]}),
            ("c2", "probe", {"marker": KEY, "how": "raise"}),
            ("c3", "probe", {"marker": f"x{KEY}", "how": "fail"}),
            ("c4", "probe", {"password": "hunter2"}),
        ),
        reply_text("fine"),
    )
    async with service({"providers.test.api_key": KEY}, probes=True) as one:
        runs = [await one.run(f"{words} [s:{words}]", words) for words in ("refused", "leak")]
        records = [await one.ended(run_id) for run_id in runs]
        assert [record["status"] for record in records] == ["failed", "succeeded"]
        assert records[0]["error"]["code"] == "provider-auth"
        told_all = []
        for run_id, session in zip(runs, ("refused", "leak"), strict=True):
            async with await one.stream(run_id) as stream:
                told_all += [event.raw for event in await stream.collect_until_done()]
            told_all += [orjson.dumps(await one.record(run_id)).decode(), orjson.dumps(await one.wait(run_id)).decode()]
            told_all.append(orjson.dumps(await one.transcript(session)).decode())
        told_all += [orjson.dumps(await one.audit()).decode(), one.log, await one.text("/metrics")]
        assert KEY not in "\n".join(told_all)
        assert "hunter2" not in "\n".join(told_all)
        assert "***" in "\n".join(told_all)
        assert KEY not in everywhere(one, ("run_event", "audit", "run_text"))
        sent = orjson.dumps(model.requests_of("leak")[1].messages[-4:]).decode()
        assert KEY not in sent, "results are masked for the model too"
        await check_case(one, runs, sessions=["leak"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"size": 5_000_000}, "omitted"),
        ({"how": "image", "size": 10_000_000}, "image/png"),
        ({"how": "fake-image", "size": 1_000}, "image/png"),
        ({"how": "bytes", "size": 200_000}, "\ufffd"),
    ],
    ids=["5 MB of text", "10 MB image", "fake image", "invalid UTF-8"],
)
async def test_a_huge_or_odd_result_harms_nothing(
    probe_service: ProbeService, args: dict[str, object], words: str
) -> None:
    """STORE-03: each copy is bounded and says that it was cut; the turns after it are fine."""
    one, model = probe_service, probe_service.model
    session = f"store-3-{abs(hash(str(args)))}"
    model.on(f"[s:{session}]", reply_calls(("c1", "probe", {"marker": "mark", **args})), reply_text("fine"))
    run_id = await one.run(f"big [s:{session}]", session)
    assert (await one.ended(run_id))["status"] == "succeeded"
    [ended] = ends_of(await told(one, run_id))
    content = model.requests_of(session)[1].messages[-1]["content"]
    assert words in content and "mark" in content
    assert len(content) <= 33_000 and len(orjson.dumps(ended)) <= 65_536
    row = one.query("SELECT result FROM tool_call WHERE run_id = ?", run_id)[0]["result"]
    assert len(row) < 300_000 * 2
    more = [await one.run(f"more {n} [s:{session}]", session) for n in range(2)]
    assert [(await one.ended(name))["status"] for name in more] == ["succeeded"] * 2
    assert [len(request.body_bytes) < 200_000 for request in model.requests_of(session)] == [True] * 4
    await check_case(one, [run_id, *more], sessions=[session])
