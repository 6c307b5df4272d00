"""The OpenAPI document: what routes say of themselves beside their signatures, and the whole, made at the first request.

Path and query parameters stand in the signatures. Bodies, headers and answers, which handlers read and write by hand,
are described with `described`, by the names of models in `schemas`, `answers` and `blocks`; those that only the
document needs are loaded with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from app import errors as err
from app.api.requests import EVENT_STREAM, IDEMPOTENCY_KEY_RULE, JSON, PREFER_WAIT_S_MAX

LICENCE = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
TAGS = [
    {"name": "runs", "description": "Accept a message as a run; read, wait for, stop and follow it."},
    {"name": "sessions", "description": "Conversations: their state, and what was said."},
    {"name": "audit", "description": "The ledger: who did what and how it ended, nothing of the content."},
    {"name": "catalog", "description": "What is configured. Secrets never."},
    {"name": "operation", "description": "Probes and metrics."},
]

RECEIVED_HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Idempotency-Key": (
        f"{IDEMPOTENCY_KEY_RULE}. The same key with the same body is the same run, and gets the first answer again; "
        "with another body it is refused. Kept as long as the run; a refusal is not remembered.",
        {"type": "string", "pattern": '^([!#-~][!-~]{0,255}|"[!-~]{1,256}")$', "examples": ["web-42-1"]},
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
        "The last event id that came: go on behind it. On a post only with an `Idempotency-Key`.",
        {"type": "string", "pattern": "^[0-9]{1,15}$", "examples": ["17"]},
    ),
    "X-Request-Id": (
        "Name of this request, for the log and problems. Made when it is missing or of another form.",
        {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"},
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
    "Retry-After": ("Seconds to wait before asking again, with 429 and 503.", {"type": "integer", "minimum": 1}),
    "Allow": ("With 405: the methods of this path.", {"type": "string", "examples": ["GET, POST"]}),
}

_ALWAYS = (err.BadHost, err.BadOrigin, err.InternalError)
_IN_THE_API = (err.ValidationFailed, err.StoreBusy)

_KEY_SCHEMA: dict[str, Any] = {"type": "string", "$ref": "#/components/schemas/SessionKey"}


def answer(text: str, content: str | Mapping[str, str] | None = None, *headers: str) -> dict[str, Any]:
    """One answer of a route: what it means, the model of its JSON (or models by media type), headers of its own."""
    kinds = {JSON: content} if isinstance(content, str) else content or {}
    shaped: dict[str, Any] = {"description": text, "headers": _sent(headers)}
    if kinds:
        shaped["content"] = {kind: {"schema": _model(name)} for kind, name in kinds.items()}
    return shaped


def described(
    answers: Mapping[int, Mapping[str, Any]],
    *problems: type[err.LanewayError],
    headers: Iterable[str] = (),
    body: str | None = None,
    body_required: bool = True,
) -> dict[str, Any]:
    """`openapi_extra` of a route: its answers, the problems that it can end in beside those of every route, the headers
    that it reads and the model of the body that it reads."""
    extra: dict[str, Any] = {
        "parameters": [{"$ref": f"#/components/parameters/{name}"} for name in headers],
        "responses": {str(status): one for status, one in answers.items()},
        "x-problems": [kind.code for kind in problems],
    }
    if body is not None:
        extra["requestBody"] = {"required": body_required, "content": {JSON: {"schema": _model(body)}}}
    return extra
