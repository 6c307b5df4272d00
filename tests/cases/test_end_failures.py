"""A run that cannot reach its model, or gets no answer from it, ends once, with a stable code and a short text."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest

from tests.kit.gauges import until_quiet
from tests.kit.model_server import ModelServer, Reply, done, error, headers, hold, raw, reply_text, reset, role, text
from tests.kit.rules import check_case, check_run, reply_texts
from tests.kit.service import Service, ServiceFactory

SECRET = "sk-secret-of-the-test"


@pytest.fixture(scope="module")
def _many_providers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a provider for each way of not being reached, and agents that are configured wrongly."""
    with ModelServer(max_seconds=5400) as model, socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))  # bound and not listening: whoever connects is refused
        addresses = {
            "refused": f"http://127.0.0.1:{refusing.getsockname()[1]}/v1",
            "nameless": "http://no-such-host.invalid/v1",
            "insecure": f"https://127.0.0.1:{model.port}/v1",
        }
        settings = {
            "providers.test.api_key": SECRET,
            "agents.keyless.model": "openai:x",
        }
        for name, address in addresses.items():
            kind = {"kind": "openai", "base_url": address, "api_key": SECRET, "timeout_seconds": 20}
            settings |= {f"providers.{name}.{key}": str(value) for key, value in kind.items()}
        one = Service(tmp_path_factory.mktemp("providers") / "state", model, settings=settings)
        try:
            yield one.start()
        finally:
            one.end()


@pytest.fixture
async def providers(_many_providers: Service) -> AsyncIterator[Service]:
    _many_providers.model.clear()
    yield _many_providers
    await _many_providers.close_clients()
    _many_providers.model.check()


class Failure(NamedTuple):
    """How a run fails: the model that is asked, what the model server answers, and what the run ends with."""

    code: str
    retryable: bool
    reply: Reply = ()
    model: str = "test:scripted"


FAILURES = {
    "no-credential": Failure("provider-auth", False, error(401, f"bad key {SECRET}", kind="invalid_request_error")),
    "no-such-model": Failure("model-not-found", False, error(404, "no such model", code="model_not_found")),
    "connection-refused": Failure("provider-unreachable", True, model="refused:x"),
    "host-not-found": Failure("provider-unreachable", True, model="nameless:x"),
    "tls-failure": Failure("provider-unreachable", False, model="insecure:x"),
    "no-event-stream": Failure(
        "provider-bad-response", False, [headers(200, {"content-type": "text/html"}), raw(b"<html>hello</html>")]
    ),
    "server-error": Failure("provider-error", True, error(500, f"oops {SECRET}")),
}


async def test_each_failure_of_the_provider_ends_its_run_with_one_error_told_alike(providers: Service) -> None:
    """END-02"""
    await asyncio.gather(*(_one_failure(providers, kind, failure) for kind, failure in FAILURES.items()))
    await until_quiet(providers)
    assert SECRET not in providers.log


async def _one_failure(one: Service, kind: str, failure: Failure) -> None:
    session = f"fails-{kind}"
    one.model.on(f"hello [s:{session}]", failure.reply)
    run_id = await one.run(f"hello [s:{session}]", session, model=failure.model)
    follower = one.follow(run_id).start()
    waited = await one.wait(run_id, 60_000)
    assert waited["status"] == "error", f"{kind}: {waited}"
    problem = waited["error"]
    assert (problem["code"], problem["retryable"]) == (failure.code, failure.retryable), f"{kind}: {problem}"
    assert 0 < len(problem["message"]) < 300 and SECRET not in problem["message"], problem
    record = await one.record(run_id)
    assert (record["status"], record["error"]) == ("failed", problem)
    ends = [event for event in await follower.finish() if event.terminal]
    assert [(event.phase, event.payload["error"]) for event in ends] == [("error", problem)]
    assert all(SECRET not in event.raw for event in follower.events)
    assert [item["role"] for item in await one.transcript(session)] == ["user"]
    await check_case(one, [run_id], sessions=[session])


async def test_a_run_that_fails_before_its_model_is_reached_has_times_of_its_own_and_frees_its_lane(
    providers: Service,
) -> None:
    """END-03"""
    session, model = "agent:keyless:early", providers.model
    good = {"agent": "keyless", "model": "test:scripted"}
    before = await providers.ended(await providers.run(f"before [s:{session}]", session, **good))
    assert before["status"] == "succeeded"
    asked = len(model.requests)

    failing = await providers.run(f"failing [s:{session}]", session, agent="keyless")
    record = await providers.ended(failing)
    await _failed_early(providers, record, "provider-auth")
    assert before["endedAt"] <= record["startedAt"], "the times are those of the run before"
    assert len(model.requests) == asked, "a request was made to a model"

    after = await providers.ended(await providers.run(f"after [s:{session}]", session, **good))
    assert after["status"] == "succeeded" and record["endedAt"] <= after["startedAt"]
    await check_case(providers, [before["runId"], failing, after["runId"]])
    await until_quiet(providers)


async def test_a_waiting_run_whose_provider_is_gone_after_a_restart_fails_and_frees_its_lane(
    service: ServiceFactory, model: ModelServer
) -> None:
    """END-03"""
    gone = {"providers.gone.kind": "openai", "providers.gone.base_url": model.base_url}
    one = service(gone)
    await one.up()
    model.on("ahead", [role(), text("some words"), hold("never")], reply_text("first"))
    ahead = await one.run("ahead [s:a]", "a")
    failing = await one.run("failing [s:a]", "a", model="gone:x")
    behind = await one.run("behind [s:a]", "a")
    await model.until_requests(1)
    one.kill()
    for name in gone:
        del one.settings[name]
    await one.up()

    record = await one.ended(failing)
    await _failed_early(one, record, "model-not-found")
    first, last = await one.ended(ahead), await one.ended(behind)
    assert first["status"] == last["status"] == "succeeded"
    assert first["endedAt"] <= record["startedAt"] <= record["endedAt"] <= last["startedAt"]
    assert model.requests_with("failing") == []
    await check_case(one, [ahead, failing, behind], sessions=["a"])
    await until_quiet(one)


async def _failed_early(one: Service, record: dict[str, Any], code: str) -> None:
    """One terminal error with the run's own times, told as recorded."""
    assert (record["status"], record["error"]["code"]) == ("failed", code)
    assert record["acceptedAt"] <= record["startedAt"] <= record["endedAt"]
    checked = await check_run(one, record["runId"])
    assert checked.terminal is not None
    told = checked.terminal.payload
    assert (told["startedAt"], told["endedAt"]) == (record["startedAt"], record["endedAt"])


async def test_a_model_that_cannot_be_is_refused_with_the_post_and_starts_nothing(providers: Service) -> None:
    """END-03"""
    for name in ("nowhere:x", "openai:x", "test:"):
        refused = await providers.post("hello", "refused-model", model=name)
        assert (refused.status, refused.code) == (422, "validation-failed"), refused.body
        assert refused.body["errors"][0]["pointer"] == "#/model"
    assert await providers.runs(sessionKey="refused-model") == []


async def test_a_waiter_learns_code_and_text_of_a_failure_while_the_run_fails_and_ever_after(
    providers: Service,
) -> None:
    """END-07"""
    session, model = "waited-for", providers.model
    model.on(f"hello [s:{session}]", [role(), text("some words"), hold("fail now"), reset()])
    run_id = await providers.run(f"hello [s:{session}]", session)
    waiting = asyncio.create_task(providers.wait(run_id))
    await model.until_held("fail now")
    assert (await providers.wait(run_id, 0))["waitExpired"] is True and not waiting.done()
    model.release("fail now")
    during, after = await waiting, await providers.wait(run_id, 0)
    assert during == after
    assert (during["status"], during["waitExpired"]) == ("error", False)
    assert during["error"]["code"] == "provider-bad-response" and during["error"]["message"]
    async with await providers.stream(run_id) as stream:
        assert (await stream.collect_until_done())[-1].payload == during
    await check_case(providers, [run_id], sessions=[session])
    await until_quiet(providers)


async def test_an_error_object_behind_text_fails_the_run_and_stores_no_empty_answer(providers: Service) -> None:
    """END-09"""
    session, model = "error-object", providers.model
    broken = raw(b'data: {"error":{"message":"upstream went away","type":"server_error","code":null}}\n\n')
    model.on(f"late [s:{session}]", [role(), text("I am looking"), broken, done()])
    model.on(f"early [s:{session}]", [role(), broken, done()])
    model.on(f"good [s:{session}]", reply_text("the answer"))
    late, early, good = [await providers.run(f"{name} [s:{session}]", session) for name in ("late", "early", "good")]
    for run_id in (late, early):
        record = await providers.ended(run_id)
        assert (record["status"], record["error"]["code"]) == ("failed", "provider-error"), record
    assert reply_texts(await providers.ended(good)) == ["the answer"]
    answers = [item for item in await providers.transcript(session) if item["role"] == "assistant"]
    assert all(part["text"] for item in answers for part in item["parts"]), "an empty answer was stored"
    assert [item["runId"] for item in answers] == [late, good] and answers[0]["aborted"] is True
    await check_case(providers, [late, early, good], sessions=[session])
    await until_quiet(providers)
