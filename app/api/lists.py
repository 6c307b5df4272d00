"""Paging, the same for every list: opaque cursors that fix filters and position, null at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from fastapi import Query
from pydantic import BeforeValidator

from app.domain.cursor import decode_position, encode_position, filters_mark
from app.domain.session import key_problem
from app.errors import BadRequest, FieldProblem

T = TypeVar("T")


def _milliseconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError("no offset")
        return round(moment.astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError("must be an RFC 3339 time with an offset, such as 2026-11-30T20:31:07.123Z") from None


Time = Annotated[int | None, BeforeValidator(_milliseconds)]
Since = Annotated[Time, Query(description="Inclusive RFC 3339 time.", json_schema_extra={"format": "date-time"})]
Until = Annotated[Time, Query(description="Inclusive RFC 3339 time.", json_schema_extra={"format": "date-time"})]
Limit = Annotated[int, Query(ge=1, le=200)]
ListCursor = Annotated[str | None, Query(max_length=512, description="`nextCursor` of the page before.")]


def _key(value: object) -> object:
    if isinstance(value, str):
        problem = key_problem(value)
        if problem is not None:
            raise ValueError(problem)
    return value


KeyFilter = Annotated[
    Annotated[str | None, BeforeValidator(_key)],
    Query(alias="sessionKey", description="Only this session. A `+` in the key is `%2B` in a query."),
]


def position_of(kind: str, wanted: Any, cursor: str | None) -> tuple[str, Any]:
    """(mark of this list and its filters, position after which the page begins). Raises BadRequest."""
    mark = filters_mark(kind, asdict(wanted))
    if cursor is None:
        return mark, None
    position = decode_position(mark, cursor)
    if position is None:
        raise BadRequest(
            "The cursor is not one of this list with these filters; start again without it.",
            FieldProblem("not a cursor of this list", parameter="cursor"),
        )
    return mark, tuple(position)


def list_page(
    found: list[T], limit: int, mark: str, shape: Callable[[T], dict[str, Any]], place: Callable[[T], list[int | str]]
) -> dict[str, Any]:
    """`{items, nextCursor}` from one row more than asked for."""
    items = found[:limit]
    more = len(found) > limit
    return {
        "items": [shape(item) for item in items],
        "nextCursor": encode_position(mark, place(items[-1])) if more else None,
    }
