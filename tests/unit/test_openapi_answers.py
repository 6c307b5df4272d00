"""Every way in which an operation may end, and every event, is provoked here once; the kit checks each by the document.

What stands in the document and cannot be provoked has to go from it; what is answered and does not stand there fails
wherever it is seen (`kit.contract`).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, update

from app.errors import StoreBusy
from app.events.reader import EventReader
from app.runs.intake import Receiving, RunRequest
from app.store.contract import StepUnsettled
from app.store.sqlite import SqliteStore
from app.store.tables import run
from app.store.transaction.remove import remove_runs
from tests.kit.client import API, Answer, Client, session_path
from tests.kit.contract import Ending, Operation, Shape, contract
from tests.kit.gauges import folded, until_quiet
from tests.kit.inside import inside
from tests.kit.model_server import ModelServer, error, finish, hold, reply_text, text, thinking, tool_call
from tests.kit.service import ProbeService, Service, ServiceFactory

CONTRACT = contract()
SSE = "text/event-stream"
NOWHERE = "0198c0de-0000-7000-8000-000000000001"
JSON_TYPE = {"content-type": "application/json"}
PROVOKED: set[Ending | Shape] = set()

Test = Callable[..., Awaitable[None]]


def provokes(*wanted: Ending | Shape) -> Callable[[Test], Test]:
    """The test has to see all of these."""
    PROVOKED.update(wanted)

    def wrap(test: Test) -> Test:
        @functools.wraps(test)
        async def checked(*args: Any, **named: Any) -> None:
            before = set(CONTRACT.seen)
            CONTRACT.seen.clear()
            try:
                await test(*args, **named)
                missing = [str(one) for one in wanted if one not in CONTRACT.seen]
            finally:
                CONTRACT.seen |= before
            assert not missing, f"not seen: {', '.join(missing)}"

        return checked

    return wrap


def endings(status: int, *operations: str, code: str | None = None) -> tuple[Ending, ...]:
    """The same ending of several operations."""
    return tuple(Ending(operation, status, code) for operation in operations)


def having(status: int, code: str) -> tuple[Ending, ...]:
    """Of every operation that has it."""
    every = endings(status, *CONTRACT.operations, code=code)
    return tuple(ending for ending in every if code in CONTRACT.operations[ending.operation].codes(status))


def events(stream: str, *phases: str | None) -> tuple[Shape, ...]:
    """Kinds of events of one stream."""
    return tuple(Shape(stream, phase) for phase in phases or (None,))


async def call(one: Client, operation: Operation, run_id: str = NOWHERE, **more: Any) -> Answer:
    """The plainest request of an operation."""
    path = operation.path.replace("{runId}", run_id).replace("{sessionKey}", "openapi-nowhere")
    if operation.ident == "acceptRun" and "content" not in more:
        more.setdefault("json", {"message": "x", "sessionKey": "openapi-plain"})
    return await one.request(operation.method, path, **more)


# what succeeds


@provokes(*endings(202, "acceptRun"), *endings(200, "acceptRun"), *endings(204, "acceptRun", "followRun"))
async def test_accepting(shared_service: Service) -> None:
    first = await shared_service.post("x", "openapi-accept", "openapi-accept-1")
    assert first.status == 202 and first.body["receipt"]["state"] == "queued"
    again = await shared_service.post("x", "openapi-accept", "openapi-accept-1", headers={"prefer": "wait=20"})
    assert again.status == 200 and again.body["status"] == "succeeded"
    assert again.headers["idempotent-replayed"] == "true" and again.headers["preference-applied"] == "wait=20"
    behind = str(again.body["lastSeq"] + 1)
    over = {"accept": SSE, "last-event-id": behind}
    assert (await shared_service.post("x", "openapi-accept", "openapi-accept-1", headers=over)).status == 204
    async with await shared_service.stream(first.run_id, after=behind) as stream:
        assert stream.status == 204


@provokes(*endings(200, "listRuns", "readRun", "waitForRun", "abortRun"))
async def test_runs_in_every_state(shared_service: Service) -> None:
    session = "openapi-runs"
    shared_service.model.on("openapi holds", [hold("openapi"), *reply_text("held")])
    shared_service.model.on("openapi fails", error(400))
    running = await shared_service.run("openapi holds", session, label="first", metadata={"a": [1, None]})
    waiting = await shared_service.run("openapi fails", session)
    withdrawn = await shared_service.run("x", session)
    shared_service.model.wait_held("openapi")
    states = [(await shared_service.record(run_id))["status"] for run_id in (running, waiting)]
    assert states == ["running", "queued"]
    assert (await shared_service.wait(running, 0))["waitExpired"] is True
    await shared_service.abort(withdrawn, "not wanted")
    shared_service.model.release("openapi")
    for run_id, word in ((running, "ok"), (waiting, "error"), (withdrawn, "error")):
        ended = await shared_service.wait(run_id)
        assert (ended["status"], ended["waitExpired"]) == (word, False)
    await shared_service.abort(running)
    listed = await shared_service.get(f"{API}/runs", sessionKey=session, limit=2)
    assert len(listed["items"]) == 2 and listed["nextCursor"]
    outcomes = [run["outcome"] for run in await shared_service.runs(sessionKey=session)]
    assert sorted(map(str, outcomes)) == ["None", "cancelled", "completed"]


@provokes(*endings(200, "readSession", "listSessions", "readTranscript", "abortSession"))
async def test_sessions_and_what_was_said(shared_service: Service) -> None:
    session = "openapi-sessions"
    asked = [thinking("hm"), text("let me see"), tool_call("call-1", "nosuch", {"a": 1}), finish("tool_calls")]
    shared_service.model.on("openapi says", asked, [thinking("so"), *reply_text("nothing")])
    await shared_service.ended(await shared_service.run("openapi says", session, reasoning="on"))
    await shared_service.session(session)
    await shared_service.sessions(search=session)
    kinds = {part["type"] for item in await shared_service.transcript(session) for part in item["parts"]}
    assert kinds == {"text", "thinking", "toolCall", "toolResult"}
    shared_service.model.on("openapi waits", [hold("openapi-abort"), *reply_text("held")])
    for _ in range(2):
        await shared_service.run("openapi waits", session)
    shared_service.model.wait_held("openapi-abort")
    stopped = await shared_service.abort_session(session)
    assert [one["status"] for one in stopped["runs"]] == ["cancelled", "running"]
    shared_service.model.release("openapi-abort")


REST = ("listAudit", "listAgents", "listModels", "listTools", "readHealth", "readReadiness", "readMetrics")


@provokes(*endings(200, *REST))
async def test_the_rest(shared_service: Service) -> None:
    await shared_service.ended(await shared_service.run("x", "openapi-rest"))
    for name in REST:
        assert (await call(shared_service, CONTRACT.operations[name])).status == 200, name


# what is refused by what was sent

PROBES = ("readHealth", "readReadiness", "readMetrics")
IN_THE_API = tuple(name for name in CONTRACT.operations if name not in PROBES)
EVERYWHERE: list[tuple[tuple[Ending, ...], dict[str, Any]]] = [
    (endings(403, *CONTRACT.operations, code="bad-host"), {"headers": {"host": "web.example"}}),
    (endings(403, *CONTRACT.operations, code="bad-origin"), {"headers": {"origin": "http://web.example"}}),
    (endings(422, *IN_THE_API, code="validation-failed"), {"nosuch": 1}),
]
BROKEN = {"content": b"{", "headers": JSON_TYPE}
HUGE = {"content": b" " * (20 * 1024 * 1024 + 1), "headers": JSON_TYPE}
BODIES = {
    (400, "bad-request"): BROKEN,
    (413, "payload-too-large"): HUGE,
    (415, "unsupported-media-type"): {"content": b"x"},
}
OF_ONE: dict[str, dict[tuple[int, str], dict[str, Any]]] = {
    "acceptRun": {
        **BODIES,
        (400, "idempotency-key-required"): {"headers": {"last-event-id": "1"}},
        (404, "session-not-found"): {"json": {"message": "x", "sessionId": NOWHERE}},
        (406, "not-acceptable"): {"headers": {"accept": "text/html"}},
        (422, "not-available"): {"json": {"message": "x", "tools": []}},
    },
    "followRun": {
        (400, "bad-request"): {"after": "x"},
        (404, "run-not-found"): {},
        (406, "not-acceptable"): {"headers": {"accept": "text/html"}},
        (422, "not-available"): {"streams": "chat"},
    },
    "readRun": {(404, "run-not-found"): {}},
    "waitForRun": {(404, "run-not-found"): {}},
    "abortRun": {**BODIES, (404, "run-not-found"): {}},
    "abortSession": {**BODIES, (404, "session-not-found"): {}},
    "readSession": {(404, "session-not-found"): {}},
    "readTranscript": {(404, "session-not-found"): {}, (422, "not-available"): {"view": "model"}},
    "listRuns": {(400, "bad-request"): {"cursor": "x"}},
    "listSessions": {(400, "bad-request"): {"cursor": "x"}},
    "listAudit": {(400, "bad-request"): {"cursor": "x"}},
}
REFUSED: dict[Ending, dict[str, Any]] = {
    **{ending: sent for of_many, sent in EVERYWHERE for ending in of_many},
    **{Ending(name, *refusal): sent for name, refusals in OF_ONE.items() for refusal, sent in refusals.items()},
}
PROVOKED.update(REFUSED)


@pytest.mark.sqlite
@pytest.mark.parametrize("ending", REFUSED, ids=str)
async def test_a_request_that_is_refused(shared_service: Service, ending: Ending) -> None:
    answer = await call(shared_service, CONTRACT.operations[ending.operation], **REFUSED[ending])
    assert (answer.status, answer.code) == ending[1:], answer.body


@pytest.mark.sqlite
@provokes(
    Ending("acceptRun", 409, "session-busy"),
    Ending("acceptRun", 409, "session-conflict"),
    Ending("acceptRun", 422, "idempotency-key-reused"),
    Ending("readTranscript", 400, "bad-request"),
)
async def test_a_request_that_does_not_fit_what_is_there(shared_service: Service) -> None:
    session = "openapi-there"
    shared_service.model.on("openapi is busy", [hold("openapi-busy"), *reply_text("held")])
    first = await shared_service.post("openapi is busy", session, "openapi-key")
    await shared_service.post("openapi is busy", session, queue={"mode": "reject"})
    await shared_service.post("another body", session, "openapi-key")
    await shared_service.post("x", "openapi-other", sessionId=first.body["sessionId"])
    await shared_service.request("GET", session_path(session, "/transcript"), cursor="x")
    shared_service.model.release("openapi-busy")


# what the service cannot do now


@pytest.mark.sqlite
@provokes(
    *endings(429, "acceptRun", "followRun", code="rate-limited"),
    *(Ending("acceptRun", 503, code) for code in ("queue-full", "draining")),
    *endings(503, "readReadiness"),
    *events("shutdown"),
)
async def test_a_service_that_is_full_and_then_goes(service: ServiceFactory, model: ModelServer) -> None:
    model.on("never ends", [text("half"), hold("never")])
    async with service({"limits.streams_per_principal": 1, "queue.cap": 1, "server.drain_seconds": 600}) as one:
        run_id = await one.run("never ends [s:a]", "a")
        await model.until_held("never")
        await one.run("x [s:a]", "a")
        assert (await one.post("x [s:a]", "a")).code == "queue-full"
        async with await one.stream(run_id) as stream:
            for more in (await one.stream(run_id), await one.post_stream("x", "b")):
                async with more:
                    assert (await more.json())["code"] == "rate-limited"
            one.terminate()
            await until_quiet(one, open_streams=1, runs_executing=1, draining=1)
            assert (await one.request("GET", "/readyz")).body["reason"] == "draining"
            assert (await one.post("x", "b")).code == "draining"
            one.terminate()
            assert (await stream.expect_end(30))[-1].stream == "shutdown"


OF_A_RUN = endings(410, "readRun", "waitForRun", "abortRun", "followRun", code="deleted")


@pytest.mark.sqlite
@provokes(*OF_A_RUN)
async def test_a_run_that_is_not_kept_any_more(service: ServiceFactory) -> None:
    async with service() as one:
        run_id = await one.run("x [s:a]", "a")
        await one.ended(run_id)
        await folded(one, run_id)
        assert not one.store.step(partial(remove_runs, before_ms=10**15))
        for ending in OF_A_RUN:
            assert (await call(one, CONTRACT.operations[ending.operation], run_id)).code == "deleted", ending


@provokes(Ending("acceptRun", 410, "deleted"))
async def test_a_run_that_goes_between_its_repeated_post_and_its_stream(tmp_path: Path) -> None:
    async with inside(tmp_path) as one:
        first = await one.post("x", "a", "the-key")
        await one.ended(first.run_id)
        accept = one.service.intake.accept

        async def accept_and_remove(asked: RunRequest) -> Receiving:
            received = await accept(asked)
            await one.service.around.store.write(_fold_all)
            await one.service.around.store.write(partial(remove_runs, before_ms=10**15))
            return received

        one.service.intake.accept = accept_and_remove  # type: ignore[method-assign]
        refused = await one.post("x", "a", "the-key", headers={"accept": SSE})
        assert refused.code == "deleted", refused


def _fold_all(conn: Connection) -> None:
    conn.execute(update(run).values(folded_at=1))


@provokes(*having(503, "store-busy"), *endings(503, "readReadiness"))
async def test_a_store_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever asks the store says so, and nothing else does."""

    async def read(*_: Any, **__: Any) -> None:
        raise StoreBusy("The database does not answer; ask again.")

    async def write(*_: Any, **__: Any) -> None:
        raise StepUnsettled(begun=True)

    async with inside(tmp_path) as one:
        with monkeypatch.context() as broken:
            broken.setattr(SqliteStore, "read", read)
            broken.setattr(SqliteStore, "write", write)
            codes = {name: (await call(one, told)).code for name, told in CONTRACT.operations.items()}
    busy = {ending.operation for ending in having(503, "store-busy")}
    assert codes == {name: "store-busy" if name in busy else None for name in CONTRACT.operations}


class Nothing:
    """A service of which nothing works."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"there is no {name}")


@provokes(*having(500, "internal"))
async def test_a_service_that_fails(tmp_path: Path) -> None:
    """Whatever needs anything of it says so, and nothing else does."""
    async with inside(tmp_path) as one:
        one.app.state.service = Nothing()
        codes = {name: (await call(one, told)).code for name, told in CONTRACT.operations.items()}
    failing = {ending.operation for ending in having(500, "internal")}
    assert codes == {name: "internal" if name in failing else None for name in CONTRACT.operations}


# events


@provokes(
    *events("accepted"),
    *events("lifecycle", "queued", "start", "model", "step-end", "end"),
    *(shape for stream in ("assistant", "thinking") for shape in events(stream, None, "end")),
    *events("tool", "requested", "start", "update", "end"),
    *events("done"),
)
async def test_a_run_with_tools(probe_service: ProbeService) -> None:
    asked = tool_call("call-1", "probe", {"marker": "m", "show": ["a line\n"], "seconds": 0.3})
    first = [thinking("hm"), text("let me see"), asked, finish("tool_calls")]
    probe_service.model.on("openapi streams", first, [thinking("so"), *reply_text("nothing")])
    async with await probe_service.post_stream("openapi streams", "openapi-streams", reasoning="stream") as stream:
        await stream.collect_until_done()


@provokes(
    *endings(200, "followRun"),
    *(*events("lifecycle", "error"), *events("ready"), *events("gap"), *events("snapshot")),
)
async def test_a_cursor_from_nowhere(shared_service: Service) -> None:
    shared_service.model.on("openapi fails", error(400))
    run_id = await shared_service.run("openapi fails", "openapi-gap")
    async with await shared_service.stream(run_id) as stream:
        await stream.collect_until_done()
    async with await shared_service.stream(run_id, after=10**9) as behind:
        names = [event.stream for event in await behind.collect_until_done()]
    assert names == ["ready", "gap", "snapshot", "done"]


@pytest.mark.sqlite
@provokes(
    *events("heartbeat"), *events("lifecycle", "resumed"), *events("assistant", "reset"), *events("thinking", "reset")
)
async def test_a_run_that_goes_on_after_a_kill(service: ServiceFactory, model: ModelServer) -> None:
    model.on("go on", [thinking("hm"), text("half"), hold("killed")], [thinking("so"), *reply_text("whole")])
    async with service({"events.heartbeat_seconds": 0.1}) as one:
        run_id = await one.run("go on [s:a]", "a", reasoning="stream")
        async with await one.stream(run_id) as stream:
            await stream.until(lambda event: event.payload.get("delta") == "half")
            await stream.until(lambda event: event.stream == "heartbeat")
        await one.restart(hard=True)
        async with await one.stream(run_id) as stream:
            await stream.collect_until_done()


@provokes(*events("problem"))
async def test_a_stream_that_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def follow(*_: Any) -> None:
        raise RuntimeError("it breaks")

    monkeypatch.setattr(EventReader, "follow", follow)
    async with inside(tmp_path) as one:
        assert (await one.post("x", "a", headers={"accept": SSE})).status == 200


def test_all_that_the_document_says_is_provoked_here() -> None:
    told = {ending for operation in CONTRACT.operations.values() for ending in operation.endings}
    assert sorted(map(str, PROVOKED)) == sorted(map(str, told | CONTRACT.shapes.keys()))
