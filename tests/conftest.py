"""Fixtures of the whole suite: a scripted model, a service of one's own, and one that many tests share.

Async tests need no mark. Nothing of the caller's environment reaches a test: `LANEWAY_*` and provider keys are unset.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.kit.database import KINDS, PostgresDatabase, StoreKind  # noqa: E402
from tests.kit.environment import leftover_names  # noqa: E402
from tests.kit.model_server import ModelServer  # noqa: E402
from tests.kit.postgres import PostgresServer  # noqa: E402
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


@pytest.fixture(scope="session")
def _postgres() -> Iterator[Callable[[], PostgresServer]]:
    """Started when first asked for."""
    with contextlib.ExitStack() as stack:
        yield cache(lambda: stack.enter_context(PostgresServer()))


@pytest.fixture
def postgres(_postgres: Callable[[], PostgresServer]) -> PostgresServer:
    """A PostgreSQL server that the tests of this process share: leave it running, and drop what you make."""
    return _postgres()


@pytest.fixture
def store_kind() -> StoreKind:
    """What the service under test keeps everything in; `pytest_generate_tests` says which."""
    return "sqlite"


@pytest.fixture
async def service(
    model: ModelServer, tmp_path: Path, store_kind: StoreKind, _postgres: Callable[[], PostgresServer]
) -> AsyncIterator[ServiceFactory]:
    """Makes services on `model`: `async with service(settings={...}) as one:` or `one = service(...)`, `one.start()`.

    Called twice it makes two services with state directories and databases of their own. All are ended after the test.
    """
    make_store = None
    if store_kind == "postgresql":
        make_store = partial(PostgresDatabase, _postgres())
    factory = ServiceFactory(tmp_path, model, make_store)
    yield factory
    await factory.close()


class Shared:
    """Running services that many tests use, one a kind of store, made when first asked for."""

    def __init__(self, kind: type[Service], folder: Path, postgres: Callable[[], PostgresServer]) -> None:
        self._kind = kind
        self._folder = folder
        self._postgres = postgres
        self._model = ModelServer(max_seconds=5400)
        self._made: dict[StoreKind, Service] = {}
        self._open = contextlib.ExitStack()
        self._open.enter_context(self._model)

    def get(self, store_kind: StoreKind) -> Service:
        """Started, its model cleared."""
        one = self._made.get(store_kind)
        if one is None:
            store = None
            if store_kind == "postgresql":
                store = PostgresDatabase(self._postgres())
                self._open.callback(store.drop)
            one = self._made[store_kind] = self._kind(self._folder / store_kind / "state", self._model, store=store)
            self._open.callback(one.end)
        self._model.clear()
        if not one.alive:
            one.start()
        return one

    async def check(self, one: Service) -> None:
        """After a test."""
        await one.close_clients()
        if not self._model.unchecked:
            self._model.check()

    def close(self) -> None:
        self._open.close()


@pytest.fixture(scope="session")
def _shared(tmp_path_factory: pytest.TempPathFactory, _postgres: Callable[[], PostgresServer]) -> Iterator[Shared]:
    shared = Shared(Service, tmp_path_factory.mktemp("shared"), _postgres)
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def _probing(tmp_path_factory: pytest.TempPathFactory, _postgres: Callable[[], PostgresServer]) -> Iterator[Shared]:
    shared = Shared(ProbeService, tmp_path_factory.mktemp("probing"), _postgres)
    yield shared
    shared.close()


@pytest.fixture
async def probe_service(_probing: Shared, store_kind: StoreKind) -> AsyncIterator[ProbeService]:
    """As `shared_service`, with the tools of `kit.probe` beside the service's own."""
    one = _probing.get(store_kind)
    assert isinstance(one, ProbeService)
    yield one
    await _probing.check(one)


@pytest.fixture
async def shared_service(_shared: Shared, store_kind: StoreKind) -> AsyncIterator[Service]:
    """A running service that other tests use too: never stop it, use session keys of your own.

    Its model is `shared_service.model`, cleared before the test and checked after it. Script it by marker: runs that
    an earlier test left behind may still ask.
    """
    one = _shared.get(store_kind)
    yield one
    await _shared.check(one)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--store sqlite` or `--store postgresql`: one store only. `--stored`: what another store could make fail."""
    parser.addoption("--store", choices=["both", *KINDS], default="both", help="the store of services under test")
    parser.addoption("--stored", action="store_true", help="only tests that have a store or a database server")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of `--stored`: every fixture with a store stands on `_postgres`. Tests of the other store are left out too."""
    if not config.getoption("stored"):
        return
    other = set(KINDS) - {config.getoption("store")} if config.getoption("store") in KINDS else set()
    stored, rest = [], []
    for item in items:
        has_one = "_postgres" in getattr(item, "fixturenames", ())
        of_other = any(mark.name in other for mark in item.iter_markers())
        (stored if has_one and not of_other else rest).append(item)
    items[:] = stored
    config.hook.pytest_deselected(items=rest)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Whatever a service does it does on every store, but for tests that are about one (`sqlite`, `postgresql`)."""
    if "store_kind" not in metafunc.fixturenames:
        return
    chosen = metafunc.config.getoption("store")
    marks = {mark.name for mark in metafunc.definition.iter_markers()} & set(KINDS)
    kinds = [kind for kind in KINDS if chosen in ("both", kind) and (not marks or kind in marks)]
    metafunc.parametrize("store_kind", kinds)
