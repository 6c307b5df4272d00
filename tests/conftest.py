"""Fixtures of the whole suite: a scripted model, a service of one's own, and one that many tests share.

Async tests need no mark. Nothing of the caller's environment reaches a test: `LANEWAY_*` and provider keys are unset.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.kit.environment import leftover_names  # noqa: E402
from tests.kit.model_server import ModelServer  # noqa: E402
from tests.kit.service import ProbeService, Service, ServiceFactory  # noqa: E402


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Async tests and fixtures run without a mark, whatever folder pytest was started for."""
    if config.getoption("asyncio_mode", None) is None:
        config.option.asyncio_mode = "auto"
    for name in leftover_names(os.environ):
        del os.environ[name]


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """A model server of the test's own. At the end its rules R2 and R3 are checked, unless `model.unchecked` is set."""
    with ModelServer() as server:
        yield server
        if not server.unchecked:
            server.check()


@pytest.fixture
async def service(model: ModelServer, tmp_path: Path) -> AsyncIterator[ServiceFactory]:
    """Makes services on `model`: `async with service(settings={...}) as one:` or `one = service(...)`, `one.start()`.

    Called twice it makes two services with state directories of their own. All are ended after the test.
    """
    factory = ServiceFactory(tmp_path, model)
    yield factory
    await factory.close()


@pytest.fixture(scope="session")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with ModelServer(max_seconds=5400) as server:
        one = Service(tmp_path_factory.mktemp("shared") / "state", server)
        try:
            one.start()
            yield one
        finally:
            one.end()


@pytest.fixture(scope="session")
def _probing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProbeService]:
    with ModelServer(max_seconds=5400) as server:
        one = ProbeService(tmp_path_factory.mktemp("probing") / "state", server)
        try:
            one.start()
            yield one
        finally:
            one.end()


@pytest.fixture
async def probe_service(_probing: ProbeService) -> AsyncIterator[ProbeService]:
    """As `shared_service`, with the tools of `kit.probe` beside the service's own."""
    _probing.model.clear()
    if not _probing.alive:
        _probing.start()
    yield _probing
    await _probing.close_clients()
    if not _probing.model.unchecked:
        _probing.model.check()


@pytest.fixture
async def shared_service(_shared: Service) -> AsyncIterator[Service]:
    """A running service that other tests use too: never stop it, use session keys of your own.

    Its model is `shared_service.model`, cleared before the test and checked after it. Script it by marker: runs that
    an earlier test left behind may still ask.
    """
    _shared.model.clear()
    if not _shared.alive:
        _shared.start()
    yield _shared
    await _shared.close_clients()
    if not _shared.model.unchecked:
        _shared.model.check()
