"""Sessions over HTTP: list, read, transcript, abort."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response

from app.api.context import LOCAL, ServiceDep
from app.api.lists import Limit, ListCursor, list_page, position_of
from app.api.requests import JSON, known_parameters
from app.api.runs import abort_json, read_abort
from app.api.shapes import entry_json, session_json
from app.domain.session import key_problem
from app.errors import FieldProblem, NotAvailable, SessionNotFound, ValidationFailed
from app.store.queries import sessions as queries
from app.store.queries import transcript as transcripts

router = APIRouter(prefix="/api/v1/sessions", tags=["sessions"], dependencies=[Depends(known_parameters)])

SessionKey = Annotated[
    str, Path(alias="sessionKey", description="The session's key, exact; `+` may stand as it is in a path.")
]


@router.get("", operation_id="listSessions", summary="List sessions")
async def list_sessions(  # noqa: PLR0913
    service: ServiceDep,
    agent: Annotated[str | None, Query(max_length=64, description="Only sessions of this agent.")] = None,
    search: Annotated[str | None, Query(min_length=1, max_length=256, description="Part of the key, exact.")] = None,
    active: Annotated[bool | None, Query(description="Whether a run is queued or executing.")] = None,
    limit: Limit = 50,
    cursor: ListCursor = None,
) -> Response:
    """Sessions, last created first."""
    wanted = queries.SessionFilter(agent, search, active)
    mark, before = position_of("sessions", wanted, cursor)
    find = partial(queries.page, principal=LOCAL, wanted=wanted, limit=limit + 1, before=before)
    found = await service.around.store.read(find)
    body = list_page(found, limit, mark, lambda row: session_json(row[2]), lambda row: [row[0], row[1]])
    return _json(body)


@router.get("/{sessionKey}", operation_id="readSession", summary="Read a session")
async def read_session(session_key: SessionKey, service: ServiceDep) -> Response:
    """The session as it stands."""
    return _json(session_json(await _session(session_key, service)))


@router.post("/{sessionKey}/abort", operation_id="abortSession", summary="Abort a session's runs")
async def abort_session(session_key: SessionKey, request: Request, service: ServiceDep) -> Response:
    """Stop all open runs of a session in one step: those that wait first, then the executing one."""
    _check_key(session_key)
    asked = await read_abort(request, service)
    done = await service.control.abort_session(session_key, LOCAL, asked.reason)
    items = [abort_json(one.run_id, one.status.wire, one.abort_at) for one in done]
    return _json({"sessionKey": session_key, "runs": items})


@dataclass(frozen=True, slots=True)
class _TranscriptOf:
    transcript_id: str


@router.get("/{sessionKey}/transcript", operation_id="readTranscript", summary="Read a transcript")
async def read_transcript(
    session_key: SessionKey,
    service: ServiceDep,
    limit: Limit = 50,
    cursor: ListCursor = None,
    view: Annotated[str, Query(description="`all`; `model` comes later.", json_schema_extra={"enum": ["all"]})] = "all",
) -> Response:
    """The conversation: newest page first, oldest first within a page."""
    if view == "model":
        raise NotAvailable("Not available in this build: view=model.", FieldProblem("available: all", parameter="view"))
    if view != "all":
        raise ValidationFailed("Unknown view.", FieldProblem("allowed: all", parameter="view"))
    session = await _session(session_key, service)
    mark, position = position_of("transcript", _TranscriptOf(session.session_id), cursor)
    before = session.entries + 1 if position is None else int(position[0])
    find = partial(transcripts.page, transcript_id=session.session_id, before=before, limit=limit + 1)
    found = await service.around.store.read(find)
    shape = partial(entry_json, masker=service.around.showing.masker)
    body = list_page(found, limit, mark, shape, lambda entry: [entry.entry_no, entry.entry_id])
    body["items"].reverse()
    return _json(body)


async def _session(key: str, service: ServiceDep) -> queries.SessionRecord:
    _check_key(key)
    found = await service.around.store.read(partial(queries.record, key=key, principal=LOCAL))
    if found is None:
        raise SessionNotFound("No such session.")
    return found


def _check_key(key: str) -> None:
    problem = key_problem(key)
    if problem is not None:
        raise ValidationFailed(problem, FieldProblem(problem, parameter="sessionKey"))


def _json(value: dict[str, Any]) -> Response:
    return Response(orjson.dumps(value), 200, None, JSON)
