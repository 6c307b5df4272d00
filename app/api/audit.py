"""The audit ledger over HTTP."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import orjson
from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from app.api.context import LOCAL, ServiceDep
from app.api.lists import KeyFilter, ListCursor, Since, Until, list_page, position_of
from app.api.requests import JSON, known_parameters
from app.domain.audit import AuditRow
from app.store.queries.audit import AuditFilter, page

router = APIRouter(prefix="/api/v1/audit", tags=["audit"], dependencies=[Depends(known_parameters)])

Kind = Literal["agent_run", "tool_action", "message", "approval"]
Status = Literal["started", "succeeded", "failed", "cancelled", "timed_out", "blocked", "unknown"]
Direction = Literal["inbound", "outbound"]


@router.get("", operation_id="listAudit", summary="Read the ledger")
async def list_audit(  # noqa: PLR0913
    service: ServiceDep,
    agent: Annotated[str | None, Query(max_length=64, description="Only rows about this agent.")] = None,
    session_key: KeyFilter = None,
    run_id: Annotated[str | None, Query(alias="runId", max_length=64, description="Only rows about this run.")] = None,
    kind: Annotated[
        Kind | None, Query(description="What the rows are about: `agent_run` or `tool_action` in this build.")
    ] = None,
    status: Annotated[Status | None, Query(description="How it went.")] = None,
    direction: Annotated[Direction | None, Query(description="Of messages, which come with channels.")] = None,
    channel: Annotated[str | None, Query(max_length=64, description="Of messages, which come with channels.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    cursor: ListCursor = None,
) -> Response:
    """Metadata-only rows, newest first: who did what and how it ended, nothing of the content."""
    wanted = AuditFilter(agent, session_key, run_id, kind, status, direction, channel, since, until)
    mark, position = position_of("audit", wanted, cursor)
    before = None if position is None else int(position[0])
    find = partial(page, principal=LOCAL, wanted=wanted, limit=limit + 1, before=before)
    found = await service.around.store.read(find)
    body = list_page(found, limit, mark, AuditRow.to_json, lambda row: [row.seq or 0, row.event_id])
    return Response(orjson.dumps(body), 200, None, JSON)
