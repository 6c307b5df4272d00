"""Paging, the same for every list: opaque cursors that fix filters and position, null at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from fastapi import Query
from pydantic import BeforeValidator

from app.domain.cursor import decode_position, encode_position, filters_mark
from app.errors import BadRequest, FieldProblem

T = TypeVar("T")


def _milliseconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("must be an RFC 3339 time such as 2026-11-30T20:31:07.123Z") from None
    if moment.tzinfo is None:
        raise ValueError("must carry an offset, such as Z")
    return round(moment.astimezone(UTC).timestamp() * 1000)


Time = Annotated[int | None, BeforeValidator(_milliseconds)]
Since = Annotated[Time, Query(description="Inclusive RFC 3339 time.", json_schema_extra={"format": "date-time"})]
Until = Annotated[Time, Query(description="Inclusive RFC 3339 time.", json_schema_extra={"format": "date-time"})]
Limit = Annotated[int, Query(ge=1, le=200)]
ListCursor = Annotated[str | None, Query(max_length=512, description="`nextCursor` of the page before.")]


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
