"""`laneway serve`: the process. It owns the signals, the drain, and the one line that says ready."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import structlog
import typer
import uvicorn
from sse_starlette.sse import AppStatus

from app import faults
from app.assembly import build
from app.cli.connection import CuttableConnection
from app.cli.logs import configure_logging
from app.cli.migrate import bring_up
from app.clock import SystemClock, rfc3339
from app.errors import StartError
from app.main import create_app
from app.runs.service import Service
from app.settings import EMBEDDED, Loaded, Settings, load
from app.store.files import StateLock, prepare_state_dir, secret_key
from app.tools.contract import Tool

GRACE_AFTER_DRAIN_S = 1
"""For requests still in hand when all streams were told and left; readers that take nothing are cut."""

BACKLOG = 2048
KEEP_ALIVE_S = 75
"""Longer than the idle limit of the usual reverse proxies, so that it is they who close first."""

SWITCH_INTERVAL_S = 0.0005
"""How long one thread may keep the interpreter: the store's writer must not wait 5 ms for each statement."""

log = structlog.get_logger("laneway.serve")


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; loopback only.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    config: Annotated[Path | None, typer.Option(help="The laneway.toml to read.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where everything durable lives.")] = None,
    migrate: Annotated[
        bool, typer.Option("--migrate", help="Bring a PostgreSQL database up first; SQLite needs no word.")
    ] = False,
) -> None:
    """Run the service until it is told to stop."""
    overrides = {"server.host": host, "server.port": port, "state_dir": state_dir}
    run_service(load(config, os.environ, overrides), migrate=migrate)


def run_service(loaded: Loaded, tools: Iterable[Tool] = (), *, migrate: bool = False) -> None:
    """Serve until a signal; `tools` come beside the built-in ones. Raises StartError."""
    configure_logging()
    for warning in loaded.warnings:
        log.warning("settings", warning=warning)
    AppStatus.disable_automatic_graceful_drain()  # type: ignore[no-untyped-call]
    faults.arm(os.environ.get("LANEWAY_FAULTS", ""))
    settings = loaded.settings
    prepare_state_dir(settings.state_dir)
    lock = StateLock(settings.state_dir)
    lock.acquire()
    try:
        applied = bring_up(settings, migrate=migrate or settings.store.url == EMBEDDED)
        if applied:
            log.info("store.migrated", revisions=applied)
        secret = secret_key(settings.state_dir, os.environ.get("LANEWAY_SECRET_KEY", ""))
        with _listen(settings) as listener:
            url = _url(settings.server.host, listener)
            lock.tell({"pid": os.getpid(), "url": url, "since": rfc3339(SystemClock().now_ms())})
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            loop_factory = uvicorn.Config(app="", loop="auto", log_config=None).get_loop_factory()
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                runner.run(_serve(settings, listener, url, partial(build, settings, secret=secret, tools=tools)))
    finally:
        lock.release()


@contextlib.contextmanager
def _listen(settings: Settings) -> Iterator[socket.socket]:
    """The listening socket, bound before anything slow, so that a taken port is told at once."""
    server = settings.server
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((server.host, server.port))
        except OSError as problem:
            raise StartError(
                f"Cannot listen on {server.host}:{server.port}: {problem.strerror}. "
                "Choose another port (--port, 0 for a free one)."
            ) from None
        listener.setblocking(False)
        yield listener
    finally:
        listener.close()


def _url(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: on a signal it would refuse connections before the drain."""

    on_ready: Callable[[], None]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_ready()


async def _serve(settings: Settings, listener: socket.socket, url: str, make: Callable[[], Service]) -> None:
    service = make()
    server = _Server(
        uvicorn.Config(
            create_app(service, keeps_service=False),
            http=CuttableConnection,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_AFTER_DRAIN_S,
        )
    )

    def ready() -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        print(f"Laneway ready on {url}", flush=True)
        service.warm()

    server.on_ready = ready
    ender = _Ender(service, server, settings.server.drain_seconds)
    ender.install()
    broken = service.around.store.failed
    broken.add_done_callback(lambda _: ender.end_now())
    try:
        await service.open()
        await server.serve(sockets=[listener])
    finally:
        await service.close()
        ender.uninstall()
    if broken.done():
        raise broken.result()


class _Ender:
    """The first signal drains, the second hurries. Owns the task that does it."""

    def __init__(self, service: Service, server: uvicorn.Server, drain_seconds: float) -> None:
        self._service = service
        self._server = server
        self._drain_seconds = drain_seconds
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled, number)

    def uninstall(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)

    def end_now(self) -> None:
        """The store is gone: nothing can be drained."""
        self._service.stop_taking()
        self._server.should_exit = True

    def _signalled(self, number: int) -> None:
        if self._task is not None:
            self._hurry.set()
            return
        executing = self._service.executor.executing
        if executing and sys.stderr.isatty():
            print(
                f"Stopping: {executing} runs may end within {self._drain_seconds:g} s, then they go on at the next "
                "start. Again to stop now.",
                file=sys.stderr,
            )
        log.info("drain.begun", signal=signal.Signals(number).name, executing=executing)
        self._task = asyncio.create_task(self._drain(), name="laneway drain")

    async def _drain(self) -> None:
        try:
            await self._service.drain(self._drain_seconds, self._hurry)
        finally:
            self._server.should_exit = True
