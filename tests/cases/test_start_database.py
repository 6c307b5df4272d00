"""Databases that cannot be served: corrupt, locked, newer, or broken under way; each told in one line, none spoilt."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.model_server import ModelServer
from tests.kit.rules import check_case
from tests.kit.service import DATABASE, Service, ServiceFactory
from tests.kit.starting import check_refused, start

pytestmark = pytest.mark.sqlite


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database with two runs in it, as a clean stop leaves it."""
    with ModelServer() as model:
        one = Service(tmp_path_factory.mktemp("original") / "state", model).start()
        try:
            asyncio.run(_talk(one))
            one.terminate()
            assert one.wait_exit() == 0
            return one.database.read_bytes()
        finally:
            one.end()


async def _talk(one: Service) -> None:
    for words in ("x", "y"):
        await one.ended(await one.run(words, "before"))
    await one.close_clients()


def _root_page(content: bytes, table: str, folder: Path) -> slice:
    """Where the first page of a table lies in the file."""
    copy = folder / "copy.db"
    copy.write_bytes(content)
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [table]).fetchone()
    return slice((page - 1) * size, page * size)


def _broken_page(content: bytes, table: str, folder: Path) -> bytes:
    place = _root_page(content, table, folder)
    return content[: place.start] + b"\xa5" * (place.stop - place.start) + content[place.stop :]


CORRUPT = ["no database", "only a beginning", "text behind the header", "half of it", "worker", "run"]


@pytest.mark.parametrize("how", CORRUPT)
def test_a_corrupt_database_is_told_so_and_left_alone(tmp_path: Path, original: bytes, how: str) -> None:
    """Damage that shows at once, and damage that shows only when a table is read."""
    state = tmp_path / "state"
    state.mkdir()
    broken = {
        "no database": b"this is no database at all, but long enough to look" * 100,
        "only a beginning": original[:50],
        "text behind the header": original[:100] + b"x" * (len(original) - 100),
        "half of it": original[: len(original) // 2],
    }.get(how) or _broken_page(original, how, tmp_path)
    (state / DATABASE).write_bytes(broken)
    check_refused(start(state), str(state / DATABASE), "backup")
    assert (state / DATABASE).read_bytes() == broken, "evidence was changed"


def test_a_folder_in_the_place_of_the_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "state" / DATABASE).mkdir(parents=True)
    check_refused(start(tmp_path / "state"), str(tmp_path / "state" / DATABASE), "cannot be opened")


async def test_an_empty_file_is_a_new_database(service: ServiceFactory) -> None:
    one = service()
    one.state_dir.mkdir()
    one.database.touch()
    async with one:
        await check_case(one, [await one.run("x", "new")], sessions=["new"])


@contextlib.contextmanager
def _locked(database: Path) -> Iterator[None]:
    """By another process's transaction."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_a_locked_database_is_told_so(tmp_path: Path, original: bytes) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / DATABASE).write_bytes(original)
    with _locked(state / DATABASE):
        check_refused(start(state), str(state / DATABASE), "locked", "another process")
        check_refused(start(state, command="migrate"), "locked")


@pytest.mark.parametrize("revision", ["9999", "abcdef012345"])
def test_a_database_of_a_newer_version_is_told_so_and_left_alone(
    tmp_path: Path, original: bytes, revision: str
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    database = state / DATABASE
    database.write_bytes(original)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", [revision])
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    check_refused(start(state), str(database), revision, "newer")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(revision,)]
        assert connection.execute("SELECT count(*) FROM run").fetchone() == (2,)


async def test_a_database_that_breaks_under_way_ends_the_process_with_one_line(
    service: ServiceFactory, original: bytes, tmp_path: Path
) -> None:
    """No service that goes on taking runs and can keep none of them."""
    one = service()
    one.state_dir.mkdir()
    one.database.write_bytes(original)
    async with one:
        broken = _broken_page(original, "transcript", tmp_path)
        place = _root_page(original, "transcript", tmp_path)
        with one.database.open("r+b") as file:
            file.seek(place.start)
            file.write(broken[place])
        answer = await one.post("x", "after")
        assert answer.status in (202, 503), answer
        assert await one.until_exit(60) == 1
        assert one.process is not None and "Traceback" not in one.process.output, one.process.output[-3000:]
        lines = [line for line in one.process.output.splitlines() if not line.startswith("{")]
        assert lines[-1].startswith("laneway: ") and str(one.database) in lines[-1], lines
