"""Reading requests: bodies within their bound, headers that carry meaning, query parameters that exist."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import orjson
from fastapi import Request

from app.domain.cursor import parse_seq
from app.errors import (
    BadRequest,
    FieldProblem,
    NotAcceptable,
    PayloadTooLarge,
    UnsupportedMediaType,
    ValidationFailed,
)

IDEMPOTENCY_KEY_RULE = "1 to 256 visible ASCII characters, bare or as a quoted string"
PREFER_WAIT_S_MAX = 50
EVENT_STREAM = "text/event-stream"
JSON = "application/json"

_VISIBLE = re.compile(r"[\x21-\x7e]{1,256}")


async def read_json(request: Request, bytes_max: int) -> dict[str, Any]:
    """The body as a JSON object. Raises PayloadTooLarge, UnsupportedMediaType, BadRequest, ValidationFailed."""
    kind = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
    if kind != JSON and not kind.endswith("+json"):
        raise UnsupportedMediaType("Send the body as JSON.", FieldProblem(f"must be `{JSON}`", header="Content-Type"))
    body = await _read_body(request, bytes_max)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise BadRequest(
            f"The body is not valid JSON in UTF-8: {problem}.", FieldProblem("not JSON", pointer="#")
        ) from None
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise ValidationFailed(
            "The body is nested too deeply.", FieldProblem("nested too deeply", pointer="#")
        ) from None
    if not isinstance(value, dict):
        raise ValidationFailed("The body must be a JSON object.", FieldProblem("must be an object", pointer="#"))
    return value


async def _read_body(request: Request, bytes_max: int) -> bytes:
    told = request.headers.get("content-length", "")
    if told.isdigit() and len(told) < 20 and int(told) > bytes_max:
        raise _too_large(bytes_max)
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > bytes_max:
            raise _too_large(bytes_max)
        pieces.append(piece)
    return b"".join(pieces)


def _too_large(bytes_max: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body is larger than {bytes_max} bytes (`limits.request_body_bytes`).")


def body_hash(body: dict[str, Any]) -> str:
    """Hash of a body as parsed JSON: neither spacing nor the order of keys counts."""
    return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()


def idempotency_key(request: Request) -> str | None:
    """The key, unquoted, or None. Raises BadRequest."""
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    if len(given) > 1:
        raise _bad_header("Idempotency-Key", "given twice; send one")
    key = given[0].strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = re.sub(r"\\(.)", r"\1", key[1:-1])
    if not _VISIBLE.fullmatch(key):
        raise _bad_header("Idempotency-Key", f"must be {IDEMPOTENCY_KEY_RULE}")
    return key


def prefer_wait_s(request: Request) -> float | None:
    """Seconds of `Prefer: wait=N`, at most PREFER_WAIT_S_MAX; None when not asked or not understood (RFC 7240)."""
    for preference in ",".join(request.headers.getlist("prefer")).split(","):
        name, _, value = preference.partition("=")
        value = value.split(";", 1)[0].strip().strip('"')
        if name.strip().lower() == "wait" and value.isascii() and value.isdigit():
            return float(min(int(value[:6]), PREFER_WAIT_S_MAX))
    return None


def accepted_type(request: Request, *offers: str) -> str:
    """The one of `offers` that the client wants; the first for `*/*` or no Accept. Raises NotAcceptable."""
    wanted = ",".join(request.headers.getlist("accept")) or "*/*"
    best: tuple[float, int, str] | None = None
    for place, item in enumerate(wanted.split(",")):
        kind, *parameters = (piece.strip().lower() for piece in item.split(";"))
        quality = _quality(parameters)
        for offer in offers:
            if quality > 0 and kind in (offer, "*/*", offer.split("/")[0] + "/*"):
                candidate = (quality, -place, offer)
                if best is None or candidate[:2] > best[:2]:
                    best = candidate
                break
    if best is None:
        names = " or ".join(offers)
        raise NotAcceptable(f"This is served as {names}.", FieldProblem(f"must allow {names}", header="Accept"))
    return best[2]


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def last_event_id(request: Request) -> str:
    """Where a client that comes back has been; empty when it was not sent. Raises BadRequest."""
    headers = request.headers.getlist("last-event-id")
    if len(headers) > 1:
        raise _bad_header("Last-Event-ID", "given twice; send one")
    return headers[0].strip() if headers else ""


def seq_cursor(request: Request, cursor: str) -> int:
    """A run stream's cursor as a number. Raises BadRequest that names where it came from."""
    seq = parse_seq(cursor)
    if seq is None:
        rule = "must be an event id of this run: 1 to 15 digits"
        if request.headers.get("last-event-id", "").strip():
            raise _bad_header("Last-Event-ID", rule)
        raise BadRequest(f"after {rule}.", FieldProblem(rule, parameter="after"))
    return seq


def _bad_header(name: str, rule: str) -> BadRequest:
    return BadRequest(f"{name} {rule}.", FieldProblem(rule, header=name))


async def known_parameters(request: Request) -> None:
    """Refuse query parameters that the route does not have, and those given twice. A dependency of every router."""
    route = request.scope["route"]
    known = {field.alias for field in route.dependant.query_params}
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in known:
            allowed = ", ".join(sorted(known)) or "none"
            raise ValidationFailed(
                f"Unknown query parameter `{name[:64]}`.",
                FieldProblem(f"unknown; allowed: {allowed}", parameter=name[:64]),
            )
        if name in seen:
            raise ValidationFailed(
                f"Query parameter `{name}` is given twice.", FieldProblem("given twice", parameter=name)
            )
        seen.add(name)
