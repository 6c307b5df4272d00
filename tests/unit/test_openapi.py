"""The OpenAPI document: whole, closed, and true to the code. What it says of answers is in `test_openapi_answers`."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import orjson
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from app.api import words
from app.api.operations import OPERATIONS
from app.api.schemas import AbortBody, RunBody
from app.domain.event import STREAMS
from app.domain.outcome import ERROR_CODES, OUTCOMES
from app.domain.tool_call import CALL_CODES
from tests.kit.contract import PROBLEM, below, contract, routes
from tests.kit.service import Service

CONTRACT = contract()
DOCUMENT = CONTRACT.document
SCHEMAS = CONTRACT.schemas
BY_ID = CONTRACT.operations
DOCUMENTS = ("openapi", "operations", "answers", "blocks", "event_data", "words")
"""Modules that are for the document alone."""
BOUNDS = ("maxLength", "minLength", "maximum", "minimum", "enum", "const", "default")


def bounds(value: Any) -> set[tuple[str, str]]:
    """What a schema restricts, wherever it stands in it."""
    return {(bound, repr(schema[bound])) for schema in below(value) for bound in BOUNDS if bound in schema}


def test_the_document_is_valid_openapi() -> None:
    found = [f"{list(one.instance_path)}: {one.message}" for one in OPENAPI_31_VALIDATOR.iter_errors(DOCUMENT)]
    assert found == []


def test_every_route_appears_with_a_clean_id() -> None:
    assert {(one.method, one.path) for one in BY_ID.values()} == set(routes())
    assert BY_ID.keys() == OPERATIONS.keys()
    assert all(re.fullmatch(r"[a-z]+[A-Za-z]*", name) for name in BY_ID)


def test_every_reference_leads_somewhere() -> None:
    for one in below(DOCUMENT):
        if "$ref" in one:
            assert CONTRACT.resolved(one), one


def test_every_component_is_used() -> None:
    used = {one["$ref"] for one in below(DOCUMENT) if "$ref" in one}
    used |= {place for one in below(SCHEMAS) for place in one.get("discriminator", {}).get("mapping", {}).values()}
    there = {f"#/components/{kind}/{name}" for kind, named in DOCUMENT["components"].items() for name in named}
    assert there - used == set()


def test_nothing_of_the_frameworks_own_422_is_left() -> None:
    assert not {"HTTPValidationError", "ValidationError"} & SCHEMAS.keys()


@pytest.mark.parametrize("operation_id", BY_ID)
def test_every_operation_ends_in_problems_too(operation_id: str) -> None:
    """By status, each with its codes; and in what no status is named for, since more may come."""
    responses = BY_ID[operation_id].told["responses"]
    assert {"4XX", "5XX"} <= responses.keys()
    assert "Allow" in responses["4XX"]["headers"]
    for status, response in responses.items():
        assert "X-Request-Id" in response["headers"] and response["description"].strip(), status
        if PROBLEM in response.get("content", {}):
            assert response["content"].keys() == {PROBLEM}, status
            assert response["content"][PROBLEM]["schema"] == {"$ref": "#/components/schemas/Problem"}
            assert ("Retry-After" in response["headers"]) == (status in ("429", "503")), status


@pytest.mark.parametrize("operation_id", BY_ID)
def test_every_problem_of_an_operation_has_its_words_and_an_example(operation_id: str) -> None:
    operation = BY_ID[operation_id]
    told = [kind.code for kind in OPERATIONS[operation_id].problems]
    assert sorted(told) == sorted(ending.code for ending in operation.endings if ending.code is not None)
    for ending in operation.endings:
        if ending.code is None:
            continue
        response = operation.told["responses"][str(ending.status)]
        assert re.search(rf"^- `{ending.code}`: \S.* \S+", response["description"], re.MULTILINE), ending
        example = CONTRACT.resolved(response["content"][PROBLEM]["examples"][ending.code])["value"]
        assert CONTRACT.faults({"$ref": "#/components/schemas/Problem"}, example) == []
        assert (example["status"], example["code"]) == (ending.status, ending.code)


@pytest.mark.parametrize("operation_id", BY_ID)
def test_every_operation_says_what_it_is(operation_id: str) -> None:
    method, path, operation = BY_ID[operation_id][1:]
    assert operation["summary"].strip() and operation["description"].strip()
    assert set(operation["tags"]) <= {tag["name"] for tag in DOCUMENT["tags"]}
    named = [CONTRACT.resolved(parameter) for parameter in operation["parameters"]]
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
        ("CallOutcome", list({ending.outcome for ending in CALL_CODES.values()})),
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
    parameters = [CONTRACT.resolved(one)["schema"] for one in DOCUMENT["components"]["parameters"].values()]
    headers = [one["schema"] for one in DOCUMENT["components"]["headers"].values()]
    count = 0
    for schema in (*found, *parameters, *headers):
        for example in schema.get("examples", ()):
            assert CONTRACT.faults(schema, example) == [], example
            count += 1
    assert count > 20
    assert len(SCHEMAS["RunBody"]["examples"]) == 2
    block = SCHEMAS["EventBlock"]["examples"][0]
    assert CONTRACT.faults({"$ref": "#/components/schemas/Envelope"}, orjson.loads(block["data"])) == []


def test_the_licence_is_named() -> None:
    assert DOCUMENT["info"]["license"] == {"name": "Apache-2.0", "identifier": "Apache-2.0"}


def test_starting_does_not_load_the_document() -> None:
    code = "import app.main, sys; print([name for name in sys.modules if name.startswith('app.api.')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "app.api.runs" in loaded
    assert not [name for name in DOCUMENTS if f"api.{name}'" in loaded]


async def test_it_is_what_a_service_serves(shared_service: Service) -> None:
    assert await shared_service.get("/openapi.json") == DOCUMENT
