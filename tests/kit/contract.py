"""Whether an answer is one that the OpenAPI document has: the kit holds every answer of a real service against it.

Stricter than a client may be: statuses, problem codes, fields, headers, streams and phases that are not described are
faults. `Exchange` is one request with its answer; a fault is raised where the test gets the answer.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

import jsonschema_rs
import orjson
from fastapi import FastAPI

from app.main import create_app
from app.runs.service import Service
from tests.kit.sse_parser import Event, Parser

Json = dict[str, Any]
EVENT_STREAM = "text/event-stream"
PROBLEM = "application/problem+json"

_URI = "urn:document"
_OUTSIDE = ("/openapi.json", "/docs")
"""What is served and is no operation."""
_PREFLIGHT = ("access-control-allow-methods", "access-control-allow-headers", "access-control-max-age")
"""What every answer to a preflight says. It comes before any path is looked at, so it is no operation either."""
_EVERYWHERE = {(403, "bad-host"), (403, "bad-origin")}
_NOT_HTTP = b"Invalid HTTP request received."
"""What the server below says of bytes that are no HTTP; they never reach the application."""
_OF_HTTP = re.compile("date|server|content-(type|length)|transfer-encoding|connection|cache-control|x-accel-buffering")
"""Headers that need no description."""


class NotDescribed(AssertionError):
    """The service did what its document does not say."""


class Shape(NamedTuple):
    """One kind of event: its stream, and its phase if it has one."""

    stream: str
    phase: str | None = None

    def __str__(self) -> str:
        return self.stream if self.phase is None else f"{self.stream}:{self.phase}"


class Ending(NamedTuple):
    """One way in which a request may end: the operation, the status and, of a problem, its code."""

    operation: str
    status: int
    code: str | None = None

    def __str__(self) -> str:
        return f"{self.operation}:{self.status}" + ("" if self.code is None else f":{self.code}")


class Operation(NamedTuple):
    """One method of one path, as the document has it."""

    ident: str
    method: str
    path: str
    told: Json

    def codes(self, status: int) -> frozenset[str]:
        """The problem codes that it may have with a status."""
        content = self.told["responses"].get(str(status), {}).get("content", {})
        return frozenset(content.get(PROBLEM, {}).get("examples", ()))

    @property
    def endings(self) -> Iterator[Ending]:
        """All ways in which it may end; what stands for statuses that are not named is none."""
        for status in self.told["responses"]:
            if not status.isdigit():
                continue
            codes = self.codes(int(status))
            yield from (Ending(self.ident, int(status), code) for code in codes or (None,))


class Contract:
    """A document, and what is asked of it. Schemas are compiled once, when they are first needed."""

    def __init__(self, document: Json) -> None:
        self.document = document
        self.schemas: Json = document["components"]["schemas"]
        self.operations = {
            told["operationId"]: Operation(told["operationId"], method.upper(), path, told)
            for path, operations in document["paths"].items()
            for method, told in operations.items()
        }
        self._paths = [(re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), path) for path in document["paths"]]
        self._by_call = {(one.method, one.path): one for one in self.operations.values()}
        self._registry = jsonschema_rs.Registry([(_URI, {"components": closed(document)["components"]})])
        self.seen: set[Ending | Shape] = set()
        """All that answers of this process have been."""
        self._validators: dict[str, jsonschema_rs.Draft202012Validator] = {}
        self._events: dict[Shape, jsonschema_rs.Draft202012Validator] = {}

    def resolved(self, value: Json) -> Json:
        """What a reference stands for."""
        while "$ref" in value:
            found: Any = self.document
            for name in value["$ref"].removeprefix("#/").split("/"):
                found = found[name]
            value = found
        return value

    def faults(self, schema: Json, value: Any) -> list[str]:
        """Where `value` is not what the schema says, each with its place."""
        return _faults(self._validator(schema), value)

    def find(self, method: str, target: str) -> Operation | None:
        """The operation of a request; None when the document has none for it."""
        path = self.path(target)
        return None if path is None else self._by_call.get((method, path))

    def path(self, target: str) -> str | None:
        """The template of a path that is served."""
        named = unquote(target.partition("?")[0])
        return next((path for form, path in self._paths if form.fullmatch(named)), None)

    # events

    @cached_property
    def shapes(self) -> dict[Shape, str]:
        """Every kind of event, with the name of the schema of its data."""
        found: dict[Shape, str] = {}
        for group in ("Event", "ControlEvent"):
            for stream, reference in self.schemas[group]["discriminator"]["mapping"].items():
                data = self.resolved({"$ref": reference})["properties"]["data"]
                whole = self.resolved(data)
                for one in whole.get("oneOf") or whole.get("anyOf") or [data]:
                    phase = self.resolved(one)["properties"].get("phase", {}).get("const")
                    found[Shape(stream, phase)] = one["$ref"].rpartition("/")[2]
        return found

    def event_faults(self, data: Any) -> list[str]:
        """Where an envelope is not what the document says of its stream and phase."""
        shape = shape_of(data)
        if shape not in self.shapes:
            return [f"there is no event {shape}"]
        self.seen.add(shape)
        validator = self._events.get(shape)
        if validator is None:
            validator = self._events[shape] = self._compiled(self._envelope(shape))
        return [] if validator.is_valid(data) else _faults(validator, data)

    def _envelope(self, shape: Shape) -> Json:
        """The schema of the envelope with the one data of this phase, so that a fault names its place."""
        mapping = {**_mapping(self.schemas["Event"]), **_mapping(self.schemas["ControlEvent"])}
        envelope = self.resolved({"$ref": mapping[shape.stream]})
        data = {"$ref": f"#/components/schemas/{self.shapes[shape]}"}
        return {**envelope, "properties": {**envelope["properties"], "data": data}, "additionalProperties": False}

    # schemas

    def _validator(self, schema: Json) -> jsonschema_rs.Draft202012Validator:
        key = orjson.dumps(schema).decode()
        if key not in self._validators:
            self._validators[key] = self._compiled(schema)
        return self._validators[key]

    def _compiled(self, schema: Json) -> jsonschema_rs.Draft202012Validator:
        placed = orjson.loads(orjson.dumps(schema).replace(b'"#/components', f'"{_URI}#/components'.encode()))
        return jsonschema_rs.Draft202012Validator(placed, validate_formats=True, registry=self._registry)


class Exchange:
    """One request, and the answer that it gets: `begun` with its head, then `body`, or `told` with each event."""

    def __init__(self, contract: Contract, method: str, target: str) -> None:
        self._contract = contract
        self._operation = contract.find(method, target)
        self._outside = target.partition("?")[0] in _OUTSIDE
        self._method = method
        self._target = target
        self._status = 0
        self._kind = ""
        self._headers: Mapping[str, str] = {}

    def begun(self, status: int, headers: Mapping[str, str]) -> None:
        """Check a status with its headers, whose names are in lower case."""
        self._status, self._headers = status, headers
        self._kind = headers.get("content-type", "").partition(";")[0]
        if self._outside or "x-request-id" not in headers:
            return
        if self._method == "OPTIONS" and status == 204:
            self._check(all(name in headers for name in _PREFLIGHT), "no answer to a preflight")
            return
        if self._operation is None:
            self._check(self._kind == PROBLEM, f"{self._kind!r} where nothing is served")
            return
        response = self._response()
        content = response.get("content", {"": None})
        self._check(self._kind in content, f"media type {self._kind!r}, described: {list(content)}")
        for name, reference in response["headers"].items():
            self._check_header(name, self._contract.resolved(reference))
        described = {name.lower() for name in response["headers"]}
        for name in headers:
            self._check(name in described or _OF_HTTP.fullmatch(name) is not None, f"header {name!r} is not described")
        if self._kind != PROBLEM:
            self._contract.seen.add(Ending(self._operation.ident, status))

    def body(self, content: bytes) -> None:
        """Check a whole body."""
        if self._outside or self._method == "HEAD":
            return
        if "x-request-id" not in self._headers:
            self._check(content == _NOT_HTTP, "no X-Request-Id")
            return
        if self._kind == EVENT_STREAM:
            for event in Parser().feed(content):
                self.told(event)
            return
        value = _parsed(content) if self._kind.endswith("json") else content.decode()
        if self._kind == PROBLEM:
            self._check_problem(value)
        elif self._operation is not None and self._kind in (described := self._response().get("content", {})):
            self._check_value(described[self._kind]["schema"], value)
        else:
            self._check(content == b"", f"a body where none is described: {content[:200]!r}")

    def told(self, event: Event) -> None:
        """Check one block of a stream."""
        faults = self._contract.event_faults(event.data)
        block = {"id": event.id, "event": event.event or None, "data": event.raw, "retry": event.retry}
        given = {name: value for name, value in block.items() if value is not None}
        faults += self._contract.faults({"$ref": "#/components/schemas/EventBlock"}, given)
        self._check(not faults, f"event {event.id!r} {shape_of(event.data)}: {_shown(faults, event.data)}")

    def _response(self) -> Json:
        assert self._operation is not None
        responses = self._operation.told["responses"]
        self._check(str(self._status) in responses, f"the status is not described, only {list(responses)}")
        return cast(Json, responses[str(self._status)])

    def _check_header(self, name: str, described: Json) -> None:
        value = self._headers.get(name.lower())
        if value is None:
            self._check(not described.get("required"), f"no header {name}")
            return
        given = int(value) if described["schema"]["type"] == "integer" and value.isdecimal() else value
        faults = self._contract.faults(described["schema"], given)
        self._check(not faults, f"header {name}: {_shown(faults, value)}")

    def _check_problem(self, value: Any) -> None:
        self._check_value({"$ref": "#/components/schemas/Problem"}, value)
        code = value["code"]
        self._check(value["status"] == self._status, f"the problem says {value['status']}")
        if self._operation is not None:
            codes = self._operation.codes(self._status)
            self._check(code in codes, f"the problem {code!r} is not described, only {sorted(codes)}")
            self._contract.seen.add(Ending(self._operation.ident, self._status, code))
            return
        path = self._contract.path(self._target)
        other = (404, "not-found") if path is None else (405, "method-not-allowed")
        self._check((self._status, code) in {*_EVERYWHERE, other}, f"the problem {code!r}, expected {other[1]!r}")
        if self._status == 405:
            allowed = sorted(one.method for one in self._contract.operations.values() if one.path == path)
            self._check(self._headers.get("allow") == ", ".join(allowed), f"Allow: {self._headers.get('allow')!r}")

    def _check_value(self, schema: Json, value: Any) -> None:
        faults = self._contract.faults(schema, value)
        self._check(not faults, _shown(faults, value))

    def _check(self, holds: bool, fault: str) -> None:
        if not holds:
            named = "no operation" if self._operation is None else self._operation.ident
            raise NotDescribed(f"{named}, {self._method} {self._target[:200]}: {self._status}: {fault}")


def closed(document: Json) -> Json:
    """A copy in which no object has fields that are not described."""
    copied = copy.deepcopy(document)
    for schema in below(copied["components"]["schemas"]):
        if schema.get("type") == "object" and "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return copied


def below(value: Any) -> Iterator[Json]:
    """Every object in a document."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from below(one)


def shape_of(data: Any) -> Shape:
    """The kind of an event, by its envelope."""
    if not isinstance(data, dict):
        return Shape("?")
    payload = data.get("data")
    return Shape(str(data.get("stream")), payload.get("phase") if isinstance(payload, dict) else None)


@cache
def _application() -> FastAPI:
    """An application without a service behind it."""
    settings = SimpleNamespace(server=SimpleNamespace(allowed_hosts=(), allowed_origins=()))
    return create_app(cast(Service, SimpleNamespace(around=SimpleNamespace(ids=None, settings=settings))))


@cache
def contract() -> Contract:
    """The document of the application, made once a process."""
    return Contract(_application().openapi())


def routes() -> Iterator[tuple[str, str]]:
    """All (method, path template) that the application serves."""
    for route in _application().state.routes:
        yield from ((method, route.path) for method in route.methods or ())


def expect(method: str, target: str) -> Exchange:
    """A request to a real service: a path with its query."""
    return Exchange(contract(), method, target)


def _mapping(schema: Json) -> dict[str, str]:
    return cast("dict[str, str]", schema["discriminator"]["mapping"])


def _parsed(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return content


def _faults(validator: jsonschema_rs.Draft202012Validator, value: Any) -> list[str]:
    return [
        f"{'/'.join(map(str, one.instance_path)) or 'as a whole'}: {one.message}"
        for one in validator.iter_errors(value)
    ]


def _shown(faults: list[str], value: Any) -> str:
    return f"{'; '.join(faults)[:600]}; in {value!r:.1000}"
