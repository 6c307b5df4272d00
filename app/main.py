"""The web application: routers, problems, the guard, and the service's life around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI

from app import __version__
from app.api import audit, catalog, health, runs, sessions
from app.api.guard import Guard
from app.api.problems import install_problems
from app.runs.service import Service

DESCRIPTION = """Post a message, get a run id at once, follow the run over Server-Sent Events, wait for it, read its
transcript and its ledger rows. A run that got its 202 is durable: it survives a crash and ends exactly once."""


def create_app(service: Service, *, keeps_service: bool = True) -> FastAPI:
    """An application for one service. `keeps_service`: opening and closing the service is its lifespan."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if not keeps_service:
            yield
            return
        await service.open()
        try:
            yield
        finally:
            await service.close()

    app = FastAPI(
        title="Laneway",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
    )
    app.state.service = service
    routers = [module.router for module in (runs, sessions, audit, catalog, health)]
    for router in routers:
        app.include_router(router)
    install_problems(app, routers)
    app.openapi = partial(_openapi, app)  # type: ignore[method-assign]
    server = service.around.settings.server
    app.add_middleware(
        Guard,
        ids=service.around.ids,
        allowed_hosts=server.allowed_hosts,
        allowed_origins=server.allowed_origins,
    )
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    from app.api.openapi import document  # noqa: PLC0415 - its models are loaded when it is first asked for

    return document(app)
