"""The floor: the least that a service of this kind can be. FastAPI, sse-starlette, one durable row a request.

No lanes, sessions, transcript, replay or ledger: what it costs is what the framework and one COMMIT cost, and no
service built on them can be faster. `POST /rows` keeps the row and answers, `POST /runs` streams the model's answer.
"""

from __future__ import annotations

import argparse
import sqlite3
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sse_starlette import EventSourceResponse


class RunBody(BaseModel):
    """A message to run."""

    message: str


def create_app(model_url: str, database: str) -> FastAPI:
    """The application; rows go to the file `database`."""
    rows = sqlite3.connect(database, isolation_level=None)
    rows.execute("PRAGMA journal_mode = WAL")
    rows.execute("PRAGMA synchronous = FULL")
    rows.execute("CREATE TABLE run (id TEXT PRIMARY KEY, message TEXT)")
    http = httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=256), trust_env=False)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await http.aclose()
        rows.close()

    app = FastAPI(lifespan=lifespan)

    def keep(message: str) -> str:
        run_id = str(uuid.uuid4())
        rows.execute("INSERT INTO run VALUES (?, ?)", (run_id, message))
        return run_id

    @app.post("/rows", status_code=202)
    async def accept(body: RunBody) -> dict[str, str]:
        return {"runId": keep(body.message)}

    @app.post("/runs")
    async def run(body: RunBody) -> EventSourceResponse:
        keep(body.message)
        asked = {"model": "bench", "stream": True, "messages": [{"role": "user", "content": body.message}]}

        async def events() -> AsyncIterator[dict[str, str]]:
            async with http.stream("POST", f"{model_url}/v1/chat/completions", json=asked) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        yield {"data": line[6:]}

        return EventSourceResponse(events(), ping=3600)

    return app


class _Server(uvicorn.Server):
    async def startup(self, sockets: list | None = None) -> None:  # type: ignore[type-arg]
        await super().startup(sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        print(f"ready on http://127.0.0.1:{port}", flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model-url", required=True)
    options.add_argument("--database", required=True)
    given = options.parse_args()
    _Server(
        uvicorn.Config(
            create_app(given.model_url, given.database),
            host="127.0.0.1",
            port=0,
            log_level="error",
            access_log=False,
            backlog=2048,
        )
    ).run()
