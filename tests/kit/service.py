"""`Service`: the real service as a process of its own, with its state directory, model, faults, calls and database.

It can be killed, stopped, paused and started again on the same state (and port), as often as a test likes.
Methods named `wait_*` and `start` block; `up` and `until_*` are awaited.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.kit.client import Client
from tests.kit.database import FILE, Database, Rows, SqliteDatabase
from tests.kit.environment import clean_environ, variable, written
from tests.kit.model_server import ModelServer
from tests.kit.probe import LOG_VARIABLE, Line, read_log
from tests.kit.process import Process, StartFailed

ROOT = Path(__file__).parents[2]
DATABASE = FILE
READY_WITHIN_S = 30.0


class Service(Client):
    """`settings` are dotted keys (`{"queue.mode": "reject"}`); `faults` arm the first start only (`"CP-2=kill@1"`)."""

    program: Sequence[str] = ("-m", "app.cli", "serve")
    """What Python runs; it is given `--port` and the arguments."""

    def __init__(  # noqa: PLR0913
        self,
        state_dir: Path,
        model: ModelServer,
        *,
        settings: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        faults: str = "",
        arguments: Sequence[str] = (),
        ready_within_s: float = READY_WITHIN_S,
        store: Database | None = None,
    ) -> None:
        super().__init__()
        self.store: Database = store or SqliteDatabase(state_dir / FILE)
        self.state_dir = state_dir
        self.model = model
        self.settings: dict[str, Any] = {
            "providers.test.kind": "openai",
            "providers.test.base_url": model.base_url,
            "providers.test.api_key": "test-key",
            "agents.defaults.model": "test:scripted",
            **(settings or {}),
        }
        self.environ = dict(environ or {})
        self.arguments = list(arguments)
        self.process: Process | None = None
        self.lives = 0
        self._faults = faults
        self._ready_within_s = ready_within_s
        self._log_path = state_dir.with_name(state_dir.name + ".log")
        self._port = 0

    # life

    def start(self, faults: str | None = None) -> Self:
        """Start and block until it is ready. Raises StartFailed with its output."""
        self._spawn(faults).wait_ready(self._ready_within_s)
        self._note_address()
        return self

    async def up(self, faults: str | None = None) -> Self:
        """Start and await that it is ready, with the loop free for followers meanwhile."""
        await self._spawn(faults).until_ready(self._ready_within_s)
        self._note_address()
        return self

    def launch(self, faults: str | None = None) -> None:
        """Start without waiting for anything, for services that die while they start."""
        self._spawn(faults)

    async def restart(self, *, hard: bool = True, faults: str | None = None, timeout_s: float = 60.0) -> Self:
        """SIGKILL (or SIGTERM and its drain), then start again on the same state."""
        if hard:
            self.kill()
        else:
            self.terminate()
            await self.until_exit(timeout_s)
        return await self.up(faults)

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        self._living().end()

    def terminate(self) -> None:
        """SIGTERM; returns at once."""
        self._living().terminate()

    def pause(self) -> None:
        """SIGSTOP."""
        self._living().pause()

    def resume(self) -> None:
        """SIGCONT."""
        self._living().resume()

    def wait_exit(self, timeout_s: float = 30.0) -> int:
        """Block until it has ended; its exit code (-9 after SIGKILL)."""
        return self._living().wait_exit(timeout_s)

    async def until_exit(self, timeout_s: float = 30.0) -> int:
        """As `wait_exit`, awaited."""
        return await self._living().until_exit(timeout_s)

    def end(self) -> None:
        """Kill it if it lives."""
        if self.process is not None:
            self.process.end()

    def __enter__(self) -> Self:
        return self if self.alive else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    async def __aenter__(self) -> Self:
        return self if self.alive else await self.up()

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close_clients()
        self.end()

    # what is known of it

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def pid(self) -> int:
        return self._living().pid

    @property
    def log(self) -> str:
        """All it has printed, over all its lives."""
        return self._log_path.read_text("utf-8", "replace") if self._log_path.exists() else ""

    @property
    def database(self) -> Path:
        """The file, for tests that are about SQLite."""
        assert isinstance(self.store, SqliteDatabase), "this test is not marked `sqlite`"
        return self.store.path

    def query(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        """Rows of one read-only query; also while the service runs or is dead."""
        with self.reading() as rows:
            return rows(sql, *values)

    def reading(self) -> contextlib.AbstractContextManager[Rows]:
        """A query function on one snapshot of the database, in a connection of its own."""
        return self.store.reading()

    def _spawn(self, faults: str | None) -> Process:
        assert not self.alive, "the service is running already"
        armed = self._faults if faults is None else faults
        self._faults = ""
        self.state_dir.parent.mkdir(parents=True, exist_ok=True)
        environ = self._environ()
        if armed:
            environ["LANEWAY_FAULTS"] = armed
        arguments = [*self.program, "--port", str(self._port), *self.arguments]
        self.process = Process(arguments, environ, self.state_dir.parent, self._log_path)
        self.lives += 1
        return self.process

    def _environ(self) -> dict[str, str]:
        return {
            **clean_environ(os.environ),
            **{variable(key): written(value) for key, value in {**self.store.settings, **self.settings}.items()},
            **self.environ,
            "LANEWAY_STATE_DIR": str(self.state_dir),
        }

    def _note_address(self) -> None:
        self.address = self._living().address
        self._port = int(self.address.rpartition(":")[2])

    def _living(self) -> Process:
        assert self.process is not None, "the service was never started"
        return self.process


class ProbeService(Service):
    """A service with the tools of `kit.probe`."""

    program = ("-m", "tests.kit.tool_service")

    @property
    def probe_log(self) -> Path:
        return self.state_dir.parent / f"{self.state_dir.name}.probes"

    def probes(self) -> list[Line]:
        """What the probes themselves say they did, in order."""
        return read_log(self.probe_log)

    def _environ(self) -> dict[str, str]:
        return {**super()._environ(), LOG_VARIABLE: str(self.probe_log), "PYTHONPATH": str(ROOT)}


class ServiceFactory:
    """Makes services below one folder, all on one model unless another is given, and ends them all."""

    def __init__(self, folder: Path, model: ModelServer, make_store: Callable[[], Database] | None = None) -> None:
        """`make_store` gives a database of its own to each service; without, it is a file in its state directory."""
        self._folder = folder
        self._make_store = make_store
        self._model = model
        self.made: list[Service] = []

    def __call__(  # noqa: PLR0913
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        faults: str = "",
        environ: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        model: ModelServer | None = None,
        state_dir: Path | None = None,
        probes: bool = False,
        store: Database | None = None,
    ) -> Service:
        """A service that is not started yet: `async with` it, `await it.up()`, or `it.start()`.

        Two on one `store` or `state_dir` share it.

        With `probes` it has the tools of `kit.probe` too, whose log is `probe_log`.
        """
        made = (ProbeService if probes else Service)(
            state_dir or self._folder / f"state-{len(self.made) + 1}",
            model or self._model,
            settings=settings,
            environ=environ,
            faults=faults,
            arguments=arguments,
            store=store or (self._make_store() if self._make_store else None),
        )
        self.made.append(made)
        return made

    async def close(self) -> None:
        """End all of them."""
        for one in self.made:
            await one.close_clients()
            one.end()
            one.store.drop()


__all__ = ["ProbeService", "Service", "ServiceFactory", "StartFailed"]
