"""Runs over HTTP: accept, read, list, wait, abort, follow."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response
from pydantic import ValidationError

from app.api.context import LOCAL, ServiceDep
from app.api.lists import KeyFilter, Limit, ListCursor, Since, Until, list_page, position_of
from app.api.problems import request_id, validation_problem
from app.api.requests import (
    EVENT_STREAM,
    JSON,
    accepted_type,
    body_hash,
    idempotency_key,
    known_parameters,
    last_event_id,
    prefer_wait_s,
    read_json,
    seq_cursor,
)
from app.api.schemas import AbortBody, RunBody, refuse_later
from app.api.shapes import run_json, wait_json
from app.api.sse import RunStream, RunStreamResponse, StreamRequest
from app.clock import rfc3339
from app.domain.event import LATER_STREAMS, STREAMS
from app.errors import FieldProblem, IdempotencyKeyRequired, NotAvailable, ValidationFailed
from app.runs.intake import Receiving, RunRequest
from app.runs.service import Service
from app.store.queries.events import just_accepted
from app.store.queries.runs import RunFilter, page, record

ROUTE = "runs"
WAIT_MS_MAX = 600_000

RunId = Annotated[str, Path(alias="runId", description="As the accept answer gave it.")]

router = APIRouter(prefix="/api/v1/runs", tags=["runs"], dependencies=[Depends(known_parameters)])


@router.post("", status_code=202, operation_id="acceptRun", summary="Accept a run")
async def accept_run(request: Request, service: ServiceDep) -> Response:
    """Accept a message as a run; answers at once, and from then on the run is durable.

    `Idempotency-Key` makes the request safe to repeat. `Accept: text/event-stream` answers with the run's own event
    stream, `Prefer: wait=N` (at most 50 seconds) waits for its end.
    """
    settings = service.around.settings
    kind = accepted_type(request, JSON, EVENT_STREAM)
    key = idempotency_key(request)
    cursor = _post_cursor(request, key)
    body = await read_json(request, settings.limits.request_body_bytes)
    asked = _run_request(_parse(body), key, body)
    if kind == EVENT_STREAM:
        return await _accept_and_follow(request, service, asked, cursor)
    return await _accepted_json(request, service, await service.intake.accept(asked))


def _post_cursor(request: Request, key: str | None) -> int | None:
    text = last_event_id(request)
    if not text:
        return None
    if key is None:
        raise IdempotencyKeyRequired(
            "A POST that goes on after an event needs the Idempotency-Key of the first one; without it, follow the run "
            "with GET /api/v1/runs/{runId}/events.",
            FieldProblem("required with Last-Event-ID", header="Idempotency-Key"),
        )
    return seq_cursor(request, text)


def _parse(body: dict[str, Any]) -> RunBody:
    refuse_later(body)
    try:
        return RunBody.model_validate(body)
    except ValidationError as problem:
        raise validation_problem(problem.errors(include_url=False, include_context=False)) from None


def _run_request(asked: RunBody, key: str | None, body: dict[str, Any]) -> RunRequest:
    return RunRequest(
        principal=LOCAL,
        route=ROUTE,
        source="api",
        parts=asked.parts(),
        session_key=asked.session_key,
        session_id=asked.session_id,
        agent=asked.agent,
        model=asked.model,
        queue_mode=asked.queue.mode,
        queue_cap=asked.queue.cap,
        timeout_seconds=asked.timeout_seconds,
        thinking=asked.thinking,
        reasoning=asked.reasoning,
        extra_system_prompt=asked.extra_system_prompt,
        reply_required=asked.reply_required,
        metadata=asked.metadata,
        label=asked.label,
        idempotency_key=key,
        body_hash=body_hash(body) if key is not None else "",
    )


def _accept_headers(received: Receiving) -> dict[str, str]:
    headers = {"Location": f"/api/v1/runs/{received.run_id}"}
    if received.replayed:
        headers["Idempotent-Replayed"] = "true"
    return headers


async def _accept_and_follow(request: Request, service: Service, asked: RunRequest, cursor: int | None) -> Response:
    """The place among the streams is taken first: a run that was accepted is never answered with a refusal."""
    service.streams.enter(LOCAL)
    try:
        received = await service.intake.accept(replace(asked, followed=True))
    except BaseException:
        service.streams.leave(LOCAL)
        raise
    return await _accepted_stream(request, service, received, cursor)


async def _accepted_stream(request: Request, service: Service, received: Receiving, cursor: int | None) -> Response:
    accepted = orjson.loads(received.body)
    wanted = StreamRequest(received.run_id, LOCAL, cursor, accepted=accepted, ident=request_id(request.scope))
    known = None
    if not received.replayed:
        known = just_accepted(received.run_id, accepted["sessionKey"], accepted["sessionId"])
    stream = RunStream(service, wanted, entered=True)
    headers = _accept_headers(received)
    if not await stream.open(known):
        return Response(status_code=204, headers=headers)
    return RunStreamResponse(stream, headers)


async def _accepted_json(request: Request, service: Service, received: Receiving) -> Response:
    headers = _accept_headers(received)
    wait_s = prefer_wait_s(request)
    if wait_s is not None:
        headers["Preference-Applied"] = f"wait={wait_s:g}"
        waited = await service.waiter.wait(received.run_id, LOCAL, wait_s)
        if waited.record.status.terminal:
            return _json(run_json(waited.record), 200, headers)
    return Response(received.body, 202, headers, JSON)


@router.get("", operation_id="listRuns", summary="List runs")
async def list_runs(  # noqa: PLR0913
    service: ServiceDep,
    session_key: KeyFilter = None,
    status: Annotated[
        str | None,
        Query(
            description="One of the run statuses, or several with commas between.",
            json_schema_extra={"type": "array", "items": {"$ref": "#/components/schemas/RunState"}, "minItems": 1},
        ),
    ] = None,
    agent: Annotated[str | None, Query(max_length=64, description="Only runs of this agent.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    cursor: ListCursor = None,
) -> Response:
    """Runs, newest first. `since` and `until` are inclusive times of acceptance."""
    wanted = RunFilter(session_key, _statuses(status), agent, since, until)
    mark, before = position_of("runs", wanted, cursor)
    find = partial(page, principal=LOCAL, wanted=wanted, limit=limit + 1, before=before)
    found = await service.around.store.read(find)
    return _json(list_page(found, limit, mark, run_json, lambda run: [run.accepted_at, run.run_id]))


_STATUSES: dict[str, tuple[str, ...]] = {
    "queued": ("queued",),
    "running": ("running", "recovering"),
    **{name: (name,) for name in ("succeeded", "failed", "timed_out", "cancelled", "merged", "dropped")},
}


def _statuses(text: str | None) -> tuple[str, ...]:
    wanted: list[str] = []
    for name in text.split(",") if text is not None else ():
        if name not in _STATUSES:
            allowed = ", ".join(_STATUSES)
            raise ValidationFailed(
                f"Unknown status `{name[:64]}`.", FieldProblem(f"allowed: {allowed}", parameter="status")
            )
        wanted += _STATUSES[name]
    return tuple(wanted)


@router.get("/{runId}", operation_id="readRun", summary="Read a run")
async def read_run(run_id: RunId, service: ServiceDep) -> Response:
    """The run as it stands."""
    found = await service.around.store.read(partial(record, run_id=run_id, principal=LOCAL))
    return _json(run_json(found))


@router.get("/{runId}/wait", operation_id="waitForRun", summary="Wait for a run's end")
async def wait_for_run(
    run_id: RunId,
    service: ServiceDep,
    timeout_ms: Annotated[
        int, Query(alias="timeoutMs", ge=0, le=WAIT_MS_MAX, description="How long to wait; 0 answers at once.")
    ] = 30_000,
) -> Response:
    """Wait until the run has ended, at most `timeoutMs`. Expiry is `waitExpired: true` and changes nothing.

    Behind a proxy that cuts silent answers (nginx after 60 s) stay at or below 50 000 and ask again.
    """
    waited = await service.waiter.wait(run_id, LOCAL, timeout_ms / 1000)
    return _json(wait_json(waited.record, draining=waited.draining))


@router.post("/{runId}/abort", operation_id="abortRun", summary="Abort a run")
async def abort_run(run_id: RunId, request: Request, service: ServiceDep) -> Response:
    """Stop a run. Answers once the wish is durable; from then on a run that had not ended can only end as `cancelled`.

    `status` may still be `running` until its work has stopped; the terminal event tells.
    """
    asked = await read_abort(request, service)
    done = await service.control.abort(run_id, LOCAL, asked.reason)
    return _json(abort_json(done.run_id, done.status.wire, done.abort_at))


def abort_json(run_id: str, status: str, abort_at: int | None) -> dict[str, Any]:
    """What became of the wish to stop a run."""
    requested = None if abort_at is None else rfc3339(abort_at)
    return {"runId": run_id, "status": status, "abortRequestedAt": requested}


async def read_abort(request: Request, service: Service) -> AbortBody:
    """The body of an abort, which may be missing."""
    if request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
        return AbortBody(reason=None)
    body = await read_json(request, service.around.settings.limits.request_body_bytes)
    try:
        return AbortBody.model_validate(body)
    except ValidationError as problem:
        raise validation_problem(problem.errors(include_url=False, include_context=False)) from None


@router.get("/{runId}/events", operation_id="followRun", summary="Follow a run")
async def follow_run(  # noqa: PLR0913
    run_id: RunId,
    request: Request,
    service: ServiceDep,
    after: Annotated[
        str | None,
        Query(
            description="Event id to go on after, `start` or `tail`. The header `Last-Event-ID` wins.",
            json_schema_extra={"pattern": "^([0-9]{0,15}|start|tail)$"},
        ),
    ] = None,
    streams: Annotated[
        str | None,
        Query(
            description="Only these streams, with commas between; ids stay.",
            json_schema_extra={"type": "array", "items": {"$ref": "#/components/schemas/StreamName"}},
        ),
    ] = None,
    form: Annotated[
        Literal["named", "message"],
        Query(alias="format", description="`message`: all events as the default `message`."),
    ] = "named",
    tools: Annotated[
        Literal["full", "summary"],
        Query(description="`summary`: events of the stream `tool` come without `args` and `result`."),
    ] = "full",
) -> Response:
    """The run's events over SSE: replay, then live, without gap or repeat, until `done`. 204: nothing after the end."""
    accepted_type(request, EVENT_STREAM)
    cursor = last_event_id(request) or after or "start"
    from_tail = cursor == "tail"
    seq = None if cursor in ("start", "tail") else seq_cursor(request, cursor)
    asked = StreamRequest(
        run_id,
        LOCAL,
        seq,
        from_tail=from_tail,
        streams=_streams(streams),
        named=form == "named",
        tool_details=tools == "full",
        ident=request_id(request.scope),
    )
    stream = RunStream(service, asked)
    if not await stream.open():
        return Response(status_code=204)
    return RunStreamResponse(stream, {})


def _streams(text: str | None) -> frozenset[str]:
    wanted = frozenset(text.split(",")) if text else frozenset()
    later = wanted.intersection(LATER_STREAMS)
    if later:
        raise NotAvailable(
            f"Not available in this build: {', '.join(sorted(later))}.",
            FieldProblem(f"available: {', '.join(STREAMS)}", parameter="streams"),
        )
    unknown = wanted.difference(STREAMS)
    if unknown:
        raise ValidationFailed("Unknown stream.", FieldProblem(f"allowed: {', '.join(STREAMS)}", parameter="streams"))
    return wanted


def _json(value: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, JSON)
