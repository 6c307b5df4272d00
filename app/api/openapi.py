"""The OpenAPI document of the application.

Paths and their parameters come from the routes, the rest of each from `operations`, the components from the models in
`answers`, `blocks`, `words` and `schemas`. All of it is loaded, and the document made, when it is first asked for.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from app import errors as err
from app.api import blocks, event_data, schemas, words
from app.api.answers import problems, rest, runs, sessions
from app.api.operations import OPERATIONS, Answer, Kinds
from app.api.origins import EXPOSED_HEADERS
from app.api.problems import MEDIA_TYPE, problem_json
from app.api.requests import EVENT_STREAM, IDEMPOTENCY_KEY_RULE, JSON, PREFER_WAIT_S_MAX

LICENCE = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
TAGS = [
    {"name": "runs", "description": "Accept a message as a run; read, wait for, stop and follow it."},
    {"name": "sessions", "description": "Conversations: their state, and what was said."},
    {"name": "audit", "description": "The ledger: who did what and how it ended, nothing of the content."},
    {"name": "catalog", "description": "What is configured. Secrets never."},
    {"name": "operation", "description": "Probes and metrics."},
]

_IDEMPOTENCY_KEY = f"""{IDEMPOTENCY_KEY_RULE}. With the same body it is the same run, and gets the first answer again;
another body is refused. Kept as long as the run; a refusal is not remembered."""

RECEIVED_HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Idempotency-Key": (
        _IDEMPOTENCY_KEY,
        {"type": "string", "pattern": '^([!#-~][!-~]{0,255}|"[!-~]{1,256}")$'},
    ),
    "Accept": (
        f"`{EVENT_STREAM}`: answer with the run's own event stream. Else, `*/*` included: `{JSON}`.",
        {"type": "string", "default": JSON, "examples": [JSON, EVENT_STREAM]},
    ),
    "Prefer": (
        f"`wait=N`: wait up to N seconds, at most {PREFER_WAIT_S_MAX}, for the run's end. Anything else is ignored.",
        {"type": "string", "examples": ["wait=20"]},
    ),
    "Last-Event-ID": (
        "The last event id that came: go on behind it. On a post only with an `Idempotency-Key`. Empty: not sent.",
        {"type": "string", "pattern": "^[0-9]{0,15}$"},
    ),
    "X-Request-Id": (
        "Name of this request, for the log and problems: 1 to 128 of `A-Z a-z 0-9 . _ : -`. Else one is made.",
        {"type": "string"},
    ),
}
SENT_HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "X-Request-Id": ("Name of this request: as it was sent, or made.", {"type": "string"}),
    "Location": ("Path of the run.", {"type": "string", "format": "uri-reference"}),
    "Idempotent-Replayed": (
        "There when the key was known: the run was accepted before.",
        {"type": "string", "const": "true"},
    ),
    "Preference-Applied": (
        "There when a wait was asked for: how long it could be.",
        {"type": "string", "examples": ["wait=20"]},
    ),
    "Retry-After": ("Seconds to wait before asking again.", {"type": "integer", "minimum": 1}),
    "Allow": ("With 405: the methods of this path.", {"type": "string", "examples": ["GET, POST"]}),
    "Vary": ("There when `server.allowed_origins` lists any: answers differ by `Origin`.", {"type": "string"}),
    "Access-Control-Allow-Origin": (
        "For a page of a listed origin, also with refusals: that origin.",
        {"type": "string", "examples": ["http://127.0.0.1:8000"]},
    ),
    "Access-Control-Expose-Headers": ("With it: what the page may read.", {"type": "string", "const": EXPOSED_HEADERS}),
}
OF_EVERY_ANSWER = ("X-Request-Id", "Vary", "Access-Control-Allow-Origin", "Access-Control-Expose-Headers")
NEVER_MISSING = ("X-Request-Id", "Location", "Retry-After")
"""Where an answer has such a header at all, it has it always."""

_PROBLEMS = """## Problems

Every failure is an `application/problem+json` document, whatever `Accept` says, and its `code` tells which. The codes
stand with each operation, by status. A path that is not served is answered with 404 `not-found`, another method of a
path that is with 405 `method-not-allowed`, whose `Allow` lists those that it has. Treat a code that you do not know by
its status: more may come."""


def document(app: FastAPI) -> dict[str, Any]:
    """The document; made once."""
    if app.openapi_schema is None:
        app.openapi_schema = _made(app)
    return app.openapi_schema


def _made(app: FastAPI) -> dict[str, Any]:
    made: dict[str, Any] = get_openapi(
        title=app.title,
        version=app.version,
        openapi_version=app.openapi_version,
        description=f"{app.description}\n\n{_PROBLEMS}",
        routes=app.routes,
        tags=TAGS,
        license_info=LICENCE,
    )
    for operations in made["paths"].values():
        for operation in operations.values():
            _describe(operation)
    made["components"] = {
        "schemas": _schemas(),
        "parameters": {
            name: {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
            for name, (text, schema) in RECEIVED_HEADERS.items()
        },
        "headers": {
            name: {"description": text, "required": name in NEVER_MISSING, "schema": schema}
            for name, (text, schema) in SENT_HEADERS.items()
        },
        "examples": {kind.code: _example(kind) for told in OPERATIONS.values() for kind in told.problems},
    }
    return made


def _describe(operation: dict[str, Any]) -> None:
    told = OPERATIONS[operation["operationId"]]
    parameters = operation.setdefault("parameters", [])
    for parameter in parameters:
        _finish(parameter)
    parameters += [_reference("parameters", name) for name in (*told.headers, "X-Request-Id")]
    if told.body is not None:
        body = {JSON: {"schema": _reference("schemas", told.body)}}
        operation["requestBody"] = {"required": told.body_required, "content": body}
    responses = {str(status): _response(answer) for status, answer in told.answers.items()}
    for status in {kind.status for kind in told.problems}:
        responses[str(status)] = _refusal(tuple(kind for kind in told.problems if kind.status == status))
    responses["4XX"] = _response(Answer("Refused for another reason.", {MEDIA_TYPE: "Problem"}, ("Allow",)))
    responses["5XX"] = _response(Answer("Failed for another reason.", {MEDIA_TYPE: "Problem"}))
    operation["responses"] = dict(sorted(responses.items()))


def _refusal(kinds: Kinds) -> dict[str, Any]:
    """The answer of one status that tells of a failure, with an example of each code that it may have."""
    headers = ("Retry-After",) if issubclass(kinds[0], err.ServiceError) else ()
    text = "\n".join(f"- `{kind.code}`: {words.problem_meaning(kind)}" for kind in kinds)
    shaped = _response(Answer(text, {MEDIA_TYPE: "Problem"}, headers))
    shaped["content"][MEDIA_TYPE]["examples"] = {kind.code: _reference("examples", kind.code) for kind in kinds}
    return shaped


def _example(kind: type[err.LanewayError]) -> dict[str, Any]:
    return {"summary": kind.title, "value": problem_json(kind(words.problem_meaning(kind)), words.ID)}


def _finish(parameter: dict[str, Any]) -> None:
    """Nothing in a URL is null, times are text, and lists stand with commas between."""
    schema = parameter["schema"]
    schema.pop("title", None)
    schema.pop("description", None)
    words.without_null(schema)
    if schema.get("format") == "date-time":
        schema["type"] = "string"
    if schema.get("type") == "array":
        parameter |= {"style": "form", "explode": False}
    if parameter["name"] == "sessionKey":
        parameter["schema"] = _reference("schemas", "SessionKey")
    if parameter["name"] == "limit":
        parameter.setdefault("description", "How many items a page has at most.")


def _response(answer: Answer) -> dict[str, Any]:
    shaped: dict[str, Any] = {
        "description": answer.text,
        "headers": {name: _reference("headers", name) for name in (*OF_EVERY_ANSWER, *answer.headers)},
    }
    if answer.models:
        shaped["content"] = {kind: {"schema": _reference("schemas", name)} for kind, name in answer.models.items()}
    return shaped


def _reference(place: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{place}/{name}"}


class _Schemas(GenerateJsonSchema):
    """Names of fields say enough; titles made of them are left out."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _schemas() -> dict[str, Any]:
    models: list[type[BaseModel]] = [schemas.RunBody, schemas.AbortBody, words.StreamName]
    for module in (problems, runs, sessions, rest, event_data, blocks):
        models += [one for one in vars(module).values() if _is_model(one) and one.__module__ == module.__name__]
    _, made = models_json_schema(
        [(model, "validation") for model in models],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Schemas,
    )
    components: dict[str, Any] = made["$defs"]
    _bounds_of_checks(components)
    return dict(sorted(components.items()))


def _is_model(one: object) -> bool:
    """Whether it is one with a name of its own: no private base, no `RootModel[...]`."""
    return (
        isinstance(one, type) and issubclass(one, BaseModel) and one.__name__.isidentifier() and one.__name__[0] != "_"
    )


def _bounds_of_checks(made: dict[str, Any]) -> None:
    """What the validators of request bodies check beside their types, as far as a schema can say it."""
    run = made["RunBody"]
    run["examples"] = [
        {"message": "What is the weather like?"},
        {
            "message": [{"type": "text", "text": "What is the weather like?"}],
            "sessionKey": "agent:main:web-42",
            "queue": {"mode": "followup"},
            "timeoutSeconds": 600,
            "metadata": {"page": "/start"},
        },
    ]
    made["AbortBody"]["examples"] = [{"reason": "not needed any more"}]
    text, parts = run["properties"]["message"]["anyOf"]
    text |= {"minLength": 1, "pattern": r"\S"}
    parts["minItems"] = 1
    run["properties"]["sessionKey"]["anyOf"][0] = _reference("schemas", "SessionKey")
    run["properties"]["queue"].setdefault("description", "What the message does when the session has work.")
    part = made["TextPartBody"]["properties"]
    part["type"].setdefault("description", "What the part is.")
    part["text"].setdefault("description", "Text of the user.")
