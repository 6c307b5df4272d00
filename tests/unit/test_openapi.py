"""The OpenAPI document: whole, closed, true to the code, and true to what a running service answers."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import jsonschema_rs
import orjson
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from app.api import words
from app.api.operations import OPERATIONS
from app.api.schemas import AbortBody, RunBody
from app.domain.event import STREAMS
from app.domain.outcome import ERROR_CODES, OUTCOMES
from app.main import create_app
from app.runs.service import Service as Served
from tests.kit.client import API, Answer, session_path
from tests.kit.model_server import error, finish, hold, reply_text, text, thinking, tool_call
from tests.kit.service import Service

Json = dict[str, Any]
SSE = "text/event-stream"
NOWHERE = "0198c0de-0000-7000-8000-000000000001"


def made() -> tuple[Json, list[Any]]:
    """The document of a fresh application, and its routes."""
    settings = SimpleNamespace(server=SimpleNamespace(allowed_hosts=(), allowed_origins=()))
    app = create_app(cast(Served, SimpleNamespace(around=SimpleNamespace(ids=None, settings=settings))))
    return app.openapi(), app.state.routes


DOCUMENT, ROUTES = made()
SCHEMAS: Json = DOCUMENT["components"]["schemas"]
BY_ID = {
    operation["operationId"]: (method.upper(), path, operation)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}


def below(value: Any) -> Iterator[Json]:
    """Every object in a document."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from below(one)


def closed(document: Json) -> Json:
    """A copy in which no object has fields that are not described."""
    copied = copy.deepcopy(document)
    for schema in below(copied["components"]["schemas"]):
        if schema.get("type") == "object" and "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return copied


CLOSED = closed(DOCUMENT)
BOUNDS = ("maxLength", "minLength", "maximum", "minimum", "enum", "const", "default")


def bounds(value: Any) -> set[tuple[str, str]]:
    """What a schema restricts, wherever it stands in it."""
    return {(bound, repr(schema[bound])) for schema in below(value) for bound in BOUNDS if bound in schema}


def resolved(value: Json) -> Json:
    while "$ref" in value:
        found: Any = DOCUMENT
        for name in value["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        value = found
    return value


def faults(schema: Json, value: Any) -> list[str]:
    """Where `value` is not what the schema says, fields that it does not know included."""
    whole = {**schema, "components": CLOSED["components"]}
    found = jsonschema_rs.Draft202012Validator(whole, validate_formats=True).iter_errors(value)
    return [f"{list(one.instance_path)}: {one.message}" for one in found]


def check(operation_id: str, answer: Answer) -> Any:
    """That an answer is one that the document has, with its body and its headers; the body."""
    responses = BY_ID[operation_id][2]["responses"]
    found = responses.get(str(answer.status)) or responses[f"{answer.status // 100}XX"]
    kind = answer.headers.get("content-type", "").split(";")[0]
    content = found.get("content", {"": {"schema": {"type": "null"}}})
    assert kind in content, f"{answer.status} {kind} is not in {list(content)}"
    assert faults(content[kind]["schema"], answer.body) == [], answer.body
    for name, header in found["headers"].items():
        value = answer.headers.get(name)
        if value is not None:
            kind = resolved(header)["schema"]["type"]
            assert faults(resolved(header)["schema"], int(value) if kind == "integer" else value) == [], name
    assert answer.headers.get("x-request-id")
    return answer.body


# the document


def test_the_document_is_valid_openapi() -> None:
    found = [f"{list(one.instance_path)}: {one.message}" for one in OPENAPI_31_VALIDATOR.iter_errors(DOCUMENT)]
    assert found == []


def test_every_route_appears_with_a_clean_id() -> None:
    routes = {(method, route.path) for route in ROUTES for method in route.methods or ()}
    assert {(method, path) for method, path, _ in BY_ID.values()} == routes
    assert BY_ID.keys() == OPERATIONS.keys()
    assert all(re.fullmatch(r"[a-z]+[A-Za-z]*", name) for name in BY_ID)


def test_every_reference_leads_somewhere() -> None:
    for one in below(DOCUMENT):
        if "$ref" in one:
            assert resolved(one), one


def test_the_frameworks_own_422_is_gone() -> None:
    assert not {"HTTPValidationError", "ValidationError"} & SCHEMAS.keys()
    assert all("422" not in operation["responses"] for _, _, operation in BY_ID.values())


@pytest.mark.parametrize("operation_id", BY_ID)
def test_every_operation_ends_in_problems_too(operation_id: str) -> None:
    responses = BY_ID[operation_id][2]["responses"]
    for status in ("4XX", "5XX"):
        content = responses[status]["content"]
        assert content == {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
        assert "Retry-After" in responses[status]["headers"]
    assert "Allow" in responses["4XX"]["headers"]
    assert all("X-Request-Id" in response["headers"] for response in responses.values())


@pytest.mark.parametrize("operation_id", BY_ID)
def test_every_operation_says_what_it_is(operation_id: str) -> None:
    method, path, operation = BY_ID[operation_id]
    assert operation["summary"].strip() and operation["description"].strip()
    assert set(operation["tags"]) <= {tag["name"] for tag in DOCUMENT["tags"]}
    named = [resolved(parameter) for parameter in operation["parameters"]]
    assert all(parameter["description"].strip() for parameter in named)
    assert {one["name"] for one in named if one["in"] == "path"} == set(re.findall(r"{(\w+)}", path))
    assert ("requestBody" in operation) == (method == "POST")
    assert {"type": "null"} not in [branch for one in below(operation) for branch in one.get("anyOf", ())]
    assert not re.search(r"\b[a-z]+_[a-z]+\b", " ".join(one["name"] for one in named)), "camelCase"


@pytest.mark.parametrize(("name", "model"), [("RunBody", RunBody), ("AbortBody", AbortBody)])
def test_bodies_are_described_field_by_field(name: str, model: Any) -> None:
    schema = SCHEMAS[name]
    assert schema["additionalProperties"] is False
    assert schema["properties"].keys() == {field.alias for field in model.model_fields.values()}
    for part in (schema, *(SCHEMAS[nested] for nested in ("QueueBody", "TextPartBody"))):
        assert all(field.get("description", "").strip() for field in part["properties"].values()), part
    own = model.model_json_schema()
    assert bounds(own) <= bounds([schema, *(SCHEMAS[nested] for nested in own.get("$defs", {}))])
    for field, told in own["properties"].items():
        assert bounds(told) <= bounds(schema["properties"][field]), field


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("ProblemCode", [kind.code for kind in words.problem_kinds()]),
        ("RunErrorCode", list(ERROR_CODES)),
        ("Outcome", list(OUTCOMES)),
        ("StreamName", list(STREAMS)),
    ],
)
def test_closed_lists_are_those_of_the_code(name: str, codes: list[str]) -> None:
    assert sorted(SCHEMAS[name]["enum"]) == sorted(set(codes)) == sorted(codes)


@pytest.mark.parametrize("name", [name for name, schema in SCHEMAS.items() if "enum" in schema])
def test_every_word_of_a_closed_list_has_a_meaning(name: str) -> None:
    for word in SCHEMAS[name]["enum"]:
        assert re.search(rf"^- `{word}`: \S.* \S+", SCHEMAS[name]["description"], re.MULTILINE), word


def test_names_are_in_camel_case() -> None:
    names = {name for schema in below(SCHEMAS) for name in schema.get("properties", {})}
    assert all(re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", name) for name in names), names


def test_examples_are_what_their_schemas_say() -> None:
    found = [schema for schema in below(SCHEMAS) if isinstance(schema.get("examples"), list)]
    parameters = [resolved(one)["schema"] for one in DOCUMENT["components"]["parameters"].values()]
    headers = [one["schema"] for one in DOCUMENT["components"]["headers"].values()]
    count = 0
    for schema in (*found, *parameters, *headers):
        for example in schema.get("examples", ()):
            assert faults(schema, example) == [], example
            count += 1
    assert count > 20
    assert len(SCHEMAS["RunBody"]["examples"]) == 2
    block = SCHEMAS["EventBlock"]["examples"][0]
    assert faults({"$ref": "#/components/schemas/Envelope"}, orjson.loads(block["data"])) == []


def test_the_licence_is_named() -> None:
    assert DOCUMENT["info"]["license"] == {"name": "Apache-2.0", "identifier": "Apache-2.0"}


def test_starting_does_not_load_the_document() -> None:
    code = "import app.main, sys; print([name for name in sys.modules if name.startswith('app.api.')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "app.api.runs" in loaded
    assert not [name for name in ("openapi", "operations", "answers", "blocks", "words") if f"api.{name}'" in loaded]


# what a service answers


async def test_it_is_what_a_service_serves(shared_service: Service) -> None:
    assert await shared_service.get("/openapi.json") == DOCUMENT


async def test_accepting(shared_service: Service) -> None:
    first = await shared_service.post("x", "openapi-accept", "openapi-accept-1")
    assert first.status == 202 and check("acceptRun", first)["receipt"]["state"] == "queued"
    again = await shared_service.post("x", "openapi-accept", "openapi-accept-1", headers={"prefer": "wait=20"})
    assert again.status == 200 and check("acceptRun", again)["status"] == "succeeded"
    assert again.headers["idempotent-replayed"] == "true" and again.headers["preference-applied"] == "wait=20"
    done = {"accept": SSE, "last-event-id": str(again.body["lastSeq"] + 1)}
    over = await shared_service.post("x", "openapi-accept", "openapi-accept-1", headers=done)
    assert over.status == 204 and check("acceptRun", over) is None


async def test_runs_in_every_state(shared_service: Service) -> None:
    session = "openapi-runs"
    shared_service.model.on("openapi holds", [hold("openapi"), *reply_text("held")])
    shared_service.model.on("openapi fails", error(400))
    running = await shared_service.run("openapi holds", session, label="first", metadata={"a": [1, None]})
    waiting = await shared_service.run("openapi fails", session)
    withdrawn = await shared_service.run("x", session)
    shared_service.model.wait_held("openapi")
    seen = {}
    for run_id in (running, waiting):
        seen[run_id] = check("readRun", await shared_service.request("GET", f"{API}/runs/{run_id}"))
        expired = check("waitForRun", await shared_service.request("GET", f"{API}/runs/{run_id}/wait", timeoutMs=0))
        assert expired["waitExpired"] is True
    assert (seen[running]["status"], seen[waiting]["status"]) == ("running", "queued")
    path = f"{API}/runs/{withdrawn}/abort"
    check("abortRun", await shared_service.request("POST", path, json={"reason": "not wanted"}))
    shared_service.model.release("openapi")
    for run_id, word in ((running, "ok"), (waiting, "error"), (withdrawn, "error")):
        ended = check("waitForRun", await shared_service.request("GET", f"{API}/runs/{run_id}/wait"))
        assert (ended["status"], ended["waitExpired"]) == (word, False)
    check("abortRun", await shared_service.request("POST", f"{API}/runs/{running}/abort"))
    listed = check("listRuns", await shared_service.request("GET", f"{API}/runs", sessionKey=session, limit=2))
    assert len(listed["items"]) == 2 and listed["nextCursor"]
    outcomes = [run["outcome"] for run in await shared_service.runs(sessionKey=session)]
    assert sorted(map(str, outcomes)) == ["None", "cancelled", "completed"]
    for run in await shared_service.runs(sessionKey=session):
        assert faults({"$ref": "#/components/schemas/Run"}, run) == []


async def test_sessions_and_what_was_said(shared_service: Service) -> None:
    session = "openapi-sessions"
    asked = [thinking("hm"), text("let me see"), tool_call("call-1", "nosuch", {"a": 1}), finish("tool_calls")]
    shared_service.model.on("openapi says", asked, [thinking("so"), *reply_text("nothing")])
    await shared_service.ended(await shared_service.run("openapi says", session, reasoning="on"))
    check("readSession", await shared_service.request("GET", session_path(session)))
    check("listSessions", await shared_service.request("GET", f"{API}/sessions", search=session))
    page = check("readTranscript", await shared_service.request("GET", session_path(session, "/transcript")))
    kinds = {part["type"] for item in page["items"] for part in item["parts"]}
    assert kinds == {"text", "thinking", "toolCall", "toolResult"}
    check("abortSession", await shared_service.request("POST", session_path(session, "/abort")))


async def test_aborting_a_session(shared_service: Service) -> None:
    session = "openapi-abort"
    shared_service.model.on("openapi waits", [hold("openapi-abort"), *reply_text("held")])
    for _ in range(2):
        await shared_service.run("openapi waits", session)
    shared_service.model.wait_held("openapi-abort")
    done = check("abortSession", await shared_service.request("POST", session_path(session, "/abort"), json={}))
    assert [one["status"] for one in done["runs"]] == ["cancelled", "running"]
    shared_service.model.release("openapi-abort")


async def test_the_rest(shared_service: Service) -> None:
    await shared_service.ended(await shared_service.run("x", "openapi-rest"))
    assert check("listAudit", await shared_service.request("GET", f"{API}/audit", limit=2))["items"]
    assert check("listAgents", await shared_service.request("GET", f"{API}/agents"))["items"]
    assert check("listModels", await shared_service.request("GET", f"{API}/models"))["items"]
    check("readHealth", await shared_service.request("GET", "/healthz"))
    check("readReadiness", await shared_service.request("GET", "/readyz"))
    metrics = await shared_service.request("GET", "/metrics")
    check("readMetrics", metrics._replace(body=await shared_service.text("/metrics")))


async def test_problems(shared_service: Service) -> None:
    refused = [
        ("acceptRun", await shared_service.post("", "openapi-problems", nosuch=1), 422),
        ("acceptRun", await shared_service.post("x", key="a b"), 400),
        ("acceptRun", await shared_service.post("x", headers={"accept": "text/html"}), 406),
        ("acceptRun", await shared_service.post("x", tools=[]), 422),
        ("acceptRun", await shared_service.post("x", sessionId=NOWHERE), 404),
        ("acceptRun", await shared_service.request("POST", f"{API}/runs", content=b"x"), 415),
        ("acceptRun", await shared_service.request("DELETE", f"{API}/runs"), 405),
        ("readRun", await shared_service.request("GET", f"{API}/runs/{NOWHERE}"), 404),
        ("followRun", await shared_service.request("GET", f"{API}/runs/{NOWHERE}/events"), 404),
        ("followRun", await shared_service.request("GET", f"{API}/runs/x/events", headers={"accept": "a/b"}), 406),
        ("listRuns", await shared_service.request("GET", f"{API}/runs", limit=0, status="x"), 422),
        ("listRuns", await shared_service.request("GET", f"{API}/runs", cursor="x"), 400),
        ("readSession", await shared_service.request("GET", session_path("openapi-nowhere")), 404),
        ("readHealth", await shared_service.request("GET", "/healthz", headers={"host": "web.example"}), 403),
    ]
    for operation_id, answer, status in refused:
        assert answer.status == status, answer
        codes = BY_ID[operation_id][2]["responses"]["4XX"]["description"]
        assert f"`{check(operation_id, answer)['code']}` ({status})" in codes or status == 405


async def test_what_stands_in_a_stream(shared_service: Service) -> None:
    asked = [thinking("hm"), text("let me see"), tool_call("call-1", "nosuch"), finish("tool_calls")]
    shared_service.model.on("openapi streams", asked, [thinking("so"), *reply_text("nothing")])
    stream = await shared_service.post_stream("openapi streams", "openapi-streams", "openapi-1", reasoning="stream")
    events = await stream.collect_until_done()
    data = {"accepted": "Accepted", "done": "WaitEnded"}
    for event in events:
        name = "Event" if event.stream in STREAMS else "ControlEvent"
        assert faults({"$ref": f"#/components/schemas/{name}"}, event.data) == [], event
        block = {"id": event.id, "event": event.event, "data": event.raw, "retry": event.retry}
        told = {name: value for name, value in block.items() if value is not None}
        assert faults({"$ref": "#/components/schemas/EventBlock"}, told) == [], event
        if event.stream in data:
            assert faults({"$ref": f"#/components/schemas/{data[event.stream]}"}, event.payload) == [], event
    assert {event.stream for event in events} >= {*STREAMS, *data}
    async with await shared_service.stream(events[0].payload["runId"], after=10**9) as behind:
        names = {event.stream for event in await behind.collect_until_done()}
    assert names == {"ready", "gap", "snapshot", "done"} <= set(SCHEMAS["ControlName"]["enum"])
