"""What a route works with: the service, and who calls."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Request

from app.runs.service import Service

LOCAL = "local"
"""The principal of everybody on loopback, as long as there are no keys."""


async def service_of(request: Request) -> Service:
    """Async, so that no thread is entered for it."""
    return cast(Service, request.app.state.service)


ServiceDep = Annotated[Service, Depends(service_of)]
