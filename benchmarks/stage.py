"""The stage: one model server, and around it the services, each in a fresh folder and ended when it is left."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.process import NotStarted, Process
from benchmarks.targets import Direct, Floor, Laneway, session
from benchmarks.wire import Broken, now
from tests.kit.database import FILE, Database, PostgresDatabase, SqliteDatabase, StoreKind
from tests.kit.environment import variable
from tests.kit.postgres import PostgresServer

STREAMS_MAX = 5000
WARM_RUNS = 20


class Stage:
    """Starts what is measured. Every process that it gives out ends with its `async with`."""

    def __init__(self, folder: Path, model: Process, server: PostgresServer | None) -> None:
        self._folder = folder
        self._server = server
        self._databases: dict[Path, Database] = {}
        self._model_url = f"http://127.0.0.1:{model.port}"
        self._count = 0
        self.model = model
        self.direct = Direct(model)

    @asynccontextmanager
    async def floor(self) -> AsyncIterator[Floor]:
        """The bare service, warm."""
        folder = self.folder("floor")
        argv = ["benchmarks.floor", "--model-url", self._model_url, "--database", str(folder / "rows.db")]
        process = await self._spawn(argv, {}, folder)
        try:
            floor = Floor(process)
            for _ in range(WARM_RUNS):
                await floor.run("", "d8")
            yield floor
        finally:
            await process.stop()

    @asynccontextmanager
    async def laneway(self) -> AsyncIterator[Laneway]:
        """The real service on a fresh state directory, warm: the model layer is loaded and has been called."""
        async with self.started(self.folder("laneway")) as laneway:
            for _ in range(WARM_RUNS):
                await laneway.run(session(), "d8")
            yield laneway

    @asynccontextmanager
    async def started(self, folder: Path) -> AsyncIterator[Laneway]:
        """The real service on the state that `folder` holds, as soon as its port is open."""
        settings = {
            **{variable(key): str(value) for key, value in self.database(folder).settings.items()},
            "LANEWAY_STATE_DIR": str(folder / "state"),
            "LANEWAY_SERVER__DRAIN_SECONDS": "0",
            "LANEWAY_PROVIDERS__BENCH__KIND": "openai",
            "LANEWAY_PROVIDERS__BENCH__BASE_URL": f"{self._model_url}/v1",
            "LANEWAY_PROVIDERS__BENCH__API_KEY": "x",
            "LANEWAY_AGENTS__DEFAULTS__MODEL": "bench:mock",
            "LANEWAY_LIMITS__STREAMS_PER_PRINCIPAL": str(STREAMS_MAX),
        }
        process = await self._spawn(["app.cli", "serve", "--port", "0"], settings, folder)
        try:
            yield Laneway(process)
        finally:
            await process.stop()

    def database(self, folder: Path) -> Database:
        """Where the service on the state of `folder` keeps everything: its file, or a database of the server."""
        if folder not in self._databases:
            server = self._server
            made = SqliteDatabase(folder / "state" / FILE) if server is None else PostgresDatabase(server)
            self._databases[folder] = made
        return self._databases[folder]

    def folder(self, name: str) -> Path:
        """A folder of its own, removed with the stage."""
        self._count += 1
        made = self._folder / f"{name}-{self._count}"
        made.mkdir()
        return made

    @staticmethod
    async def _spawn(argv: list[str], environment: dict[str, str], folder: Path) -> Process:
        return await Process.spawn([sys.executable, "-m", *argv], environment, folder / "stderr.log")


@asynccontextmanager
async def stage(store: StoreKind) -> AsyncIterator[Stage]:
    """Everything that a measurement needs, in a temporary folder (of `TMPDIR`: it should be on a disk).

    A PostgreSQL server is one of our own, which really writes to the disk (`fsync`).
    """
    with TemporaryDirectory(prefix="laneway-bench-") as made, ExitStack() as stack:
        folder = Path(made)
        server = stack.enter_context(PostgresServer(fsync=True)) if store == "postgresql" else None
        model = await Process.spawn([sys.executable, "-m", "benchmarks.model"], {}, folder / "model.log")
        try:
            yield Stage(folder, model, server)
        finally:
            await model.stop()


async def first_accept(laneway: Laneway) -> float:
    """Seconds from the spawn to the first accepted run. Raises NotStarted."""
    while now() - laneway.process.spawned_at < 60:
        try:
            call = await laneway.accept(session(), "d1")
        except (OSError, Broken):
            await asyncio.sleep(0.01)
        else:
            return call.accepted - laneway.process.spawned_at
    raise NotStarted("no run was accepted within 60 s")
