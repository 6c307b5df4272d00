"""A proxy before a PostgreSQL server that breaks connections at the one place where it hurts: around a COMMIT."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

Cut = Literal["before", "after", "late"]
"""`before`: the COMMIT never arrives. `after`: it is done, its answer never arrives. `late`: it arrives afterwards."""

COMMIT = b"COMMIT;\x00"
LATE_S = 0.3


class PgProxy:
    """Listens on loopback; `decide()` says of each COMMIT whether and how its connection is cut."""

    def __init__(self, socket: Path, decide: Callable[[], Cut | None]) -> None:
        self._upstream = str(socket / ".s.PGSQL.5432")
        self._decide = decide
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts: list[Cut] = []

    async def __aenter__(self) -> PgProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def url(self, direct: str) -> str:
        """The address of a database through here; `direct` is its address at the socket."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return direct.partition("?")[0].replace("@/", f"@127.0.0.1:{port}/") + "?sslmode=disable"

    async def _serve(self, client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter) -> None:
        server_in, server_out = await asyncio.open_unix_connection(self._upstream)
        answers = self._keep(_pass_on(server_in, client_out))
        try:
            await self._requests(client_in, client_out, server_out, answers)
        finally:
            answers.cancel()
            client_out.close()
            server_out.close()

    async def _requests(
        self,
        client_in: asyncio.StreamReader,
        client_out: asyncio.StreamWriter,
        server_out: asyncio.StreamWriter,
        answers: asyncio.Task[None],
    ) -> None:
        while data := await client_in.read(65536):
            cut = self._decide() if data.endswith(COMMIT) else None
            if cut is None:
                server_out.write(data)
                await server_out.drain()
                continue
            self.cuts.append(cut)
            answers.cancel()
            if cut == "late":
                client_out.transport.abort()
                await asyncio.sleep(LATE_S)  # how long it is on its way is what this is about
            if cut != "before":
                server_out.write(data)
                await server_out.drain()
            if cut == "after":
                await asyncio.sleep(LATE_S / 3)  # the server commits; nobody is told
            client_out.transport.abort()
            return

    def _keep(self, work: object) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        target.close()
