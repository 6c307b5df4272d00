"""Problems: every failure becomes one RFC 9457 document, whatever `Accept` says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from app import errors as err
from app.errors import FieldProblem, LanewayError, RequestError, ServiceError

MEDIA_TYPE = "application/problem+json"

log = structlog.get_logger("laneway.api")

_BY_STATUS: dict[int, type[RequestError]] = {
    404: err.NotFound,
    405: err.MethodNotAllowed,
    413: err.PayloadTooLarge,
    415: err.UnsupportedMediaType,
}


def request_id(scope: Any) -> str:
    """The id that the guard gave this request."""
    return str(scope.get("state", {}).get("request_id", ""))


def problem_json(problem: LanewayError, ident: str) -> dict[str, Any]:
    """The document of a failure, in the request named by `ident`."""
    shaped: dict[str, Any] = {
        "type": f"urn:laneway:problem:{problem.code}",
        "title": problem.title,
        "status": problem.status,
        "detail": str(problem),
        "instance": f"urn:laneway:request:{ident}",
        "code": problem.code,
        "retryable": problem.retryable,
    }
    if isinstance(problem, ServiceError):
        shaped["retryAfterMs"] = problem.retry_after_ms
        if problem.run_id is not None:
            shaped["runId"] = problem.run_id
    if isinstance(problem, RequestError) and problem.errors:
        shaped["errors"] = [_place(place) for place in problem.errors]
    return shaped


def _place(place: FieldProblem) -> dict[str, str]:
    shaped = {"detail": place.detail}
    for name in ("pointer", "parameter", "header"):
        value = getattr(place, name)
        if value is not None:
            shaped[name] = value
    return shaped


def problem_response(problem: LanewayError, ident: str) -> Response:
    """The answer that tells of a failure."""
    headers: dict[str, str] = {}
    if isinstance(problem, ServiceError):
        headers["Retry-After"] = str(max(1, -(-problem.retry_after_ms // 1000)))
    if isinstance(problem, RequestError) and problem.allow is not None:
        headers["Allow"] = problem.allow
    return Response(orjson.dumps(problem_json(problem, ident)), problem.status, headers, MEDIA_TYPE)


def install_problems(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    """Handle everything that can escape a route. `routers` are those of the application: they know the methods."""
    app.state.routes = [route for router in routers for route in router.routes if isinstance(route, Route)]
    app.add_exception_handler(LanewayError, _named)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _framework)


async def _named(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, LanewayError)
    return problem_response(problem, request_id(request.scope))


async def _invalid(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    return problem_response(validation_problem(problem.errors(), sourced=True), request_id(request.scope))


async def _framework(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    kind = _BY_STATUS.get(problem.status_code)
    if kind is err.NotFound:
        named: LanewayError = err.NotFound(f"Nothing is served at {request.url.path}; see /docs for what is.")
    elif kind is err.MethodNotAllowed:
        allow = _allowed_methods(request)
        named = err.MethodNotAllowed(f"{request.method} is not allowed here; allowed: {allow}.", allow=allow)
    elif kind is not None:
        named = kind(str(problem.detail))
    elif problem.status_code < 500:
        named = err.BadRequest(str(problem.detail))
    else:
        named = err.InternalError("The service failed.")
    return problem_response(named, request_id(request.scope))


def _allowed_methods(request: Request) -> str:
    """The methods of all routes of this path; one route knows only its own."""
    allowed: set[str] = set()
    for route in request.app.state.routes:
        if route.path_regex.match(request.scope["path"]):
            allowed |= route.methods or set()
    return ", ".join(sorted(allowed))


def unexpected(scope: Any, problem: Exception) -> Response:
    """The answer to a failure that has no name: nothing of its inside, but where the log has it."""
    ident = request_id(scope)
    log.error("api.failed", request_id=ident, path=scope["path"], exc_info=problem)
    return problem_response(
        err.InternalError(f"The service failed; its log has the details under request {ident}."), ident
    )


def validation_problem(errors: Any, *, sourced: bool = False) -> err.ValidationFailed:
    """Pydantic's errors as places of the request, each with what is allowed there.

    `sourced`: each place begins with where it stands (`query`, `path`, `header`, `body`), as the framework's do.
    """
    places = tuple(_field(error, sourced=sourced) for error in errors)
    first = places[0]
    where = first.pointer or first.parameter or first.header or "the request"
    more = f" ({len(places) - 1} more)" if len(places) > 1 else ""
    return err.ValidationFailed(f"{where}: {first.detail}{more}.", *places)


def _field(error: Any, *, sourced: bool) -> FieldProblem:
    loc = list(error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = "unknown field"
    elif error["type"] == "missing":
        message = "required"
    source = loc.pop(0) if sourced and loc else "body"
    if source in ("query", "path"):
        return FieldProblem(message, parameter=str(loc[0]) if loc else None)
    if source == "header":
        return FieldProblem(message, header=str(loc[0]) if loc else None)
    return FieldProblem(message, pointer=pointer(loc))


_BRANCHES = ("str", "list[TextPartBody]")


def pointer(path: list[Any]) -> str:
    """A JSON pointer as a fragment. The name of a union's branch behind `message` is no place of the document."""
    steps = list(path)
    if len(steps) > 1 and steps[0] == "message" and steps[1] in _BRANCHES:
        del steps[1]
    escaped = [str(step).replace("~", "~0").replace("/", "~1") for step in steps]
    return "#/" + "/".join(escaped) if escaped else "#"
