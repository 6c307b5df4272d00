"""The application inside the test's own process, for failures that a real service cannot be brought to at will.

Built as `laneway serve` builds it, on a SQLite file of its own; what it stands on is broken by the test.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
from fastapi import FastAPI
from structlog.testing import capture_logs

from app.assembly import build
from app.cli.migrate import bring_up
from app.main import create_app
from app.runs.service import Service
from app.settings import load
from app.store.files import prepare_state_dir
from tests.kit.client import Client


class Inside(Client):
    """Calls on it, which go over no network. An answer is there when it is whole."""

    address = "http://localhost"

    def __init__(self, app: FastAPI) -> None:
        super().__init__()
        self.app = app
        self.service: Service = app.state.service
        self._inner = httpx.AsyncClient(transport=httpx.ASGITransport(app))

    def _client(self) -> httpx.AsyncClient:
        return self._inner


@contextlib.asynccontextmanager
async def inside(folder: Path) -> AsyncIterator[Inside]:
    """A service that keeps everything in this folder and answers with the built-in model; closed at the end."""
    settings = load(None, {"HOME": str(folder)}, {"state_dir": folder}).settings
    prepare_state_dir(settings.state_dir)
    bring_up(settings, migrate=True)
    service = build(settings)
    await service.open()
    client = Inside(create_app(service, keeps_service=False))
    try:
        with capture_logs():  # what is provoked would be written with all its local variables, which takes seconds
            yield client
    finally:
        await client._inner.aclose()
        client.app.state.service = service
        await service.close()
