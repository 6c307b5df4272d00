"""Starts that cannot succeed: one clear line that says what is wrong and what to do, exit code 1, nothing spoilt."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.disk import small_disk
from tests.kit.service import Service, ServiceFactory
from tests.kit.starting import check_refused, start

START_S = 60.0


@contextlib.contextmanager
def listening() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    """And the state directory is free again afterwards."""
    with listening() as port:
        check_refused(start(tmp_path / "state", "--port", str(port)), f"127.0.0.1:{port}", "--port")
    assert not (tmp_path / "state" / "laneway.owner").exists()


def test_a_port_that_is_taken_between_bind_and_listen_is_named(service: ServiceFactory) -> None:
    """Two that start at once may both bind it; the one that listens second has to say so as well."""
    one = service()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        one.arguments = ["--port", str(other.getsockname()[1])]
        owner = one.state_dir / "laneway.owner"
        one.launch()
        limit = time.monotonic() + START_S
        while not owner.exists() and one.alive:  # bound by now, or refused at once
            assert time.monotonic() < limit
            time.sleep(0.001)
        with contextlib.suppress(OSError):
            other.listen()
        assert one.process is not None
        while one.alive and "Laneway ready" not in one.process.output:
            assert time.monotonic() < limit
            time.sleep(0.01)
        if not one.alive:
            assert one.wait_exit() == 1
            lines = [line for line in one.process.output.splitlines() if not line.startswith("{")]
            assert len(lines) == 1 and lines[0].startswith("laneway: Cannot listen on"), one.process.output


async def test_a_second_process_on_the_same_state_names_the_first(service: ServiceFactory, tmp_path: Path) -> None:
    async with service() as first:
        line = check_refused(start(first.state_dir), str(first.state_dir), f"process {first.pid}", first.address)
        assert "--state-dir" in line
        check_refused(start(first.state_dir, command="migrate"), f"process {first.pid}")
        assert (await first.request("GET", "/readyz")).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.test"])
def test_an_address_that_is_not_loopback_is_refused(tmp_path: Path, host: str) -> None:
    """This build has no authentication."""
    check_refused(start(tmp_path / "state", "--host", host), "server.host", "loopback", "command line")
    assert not (tmp_path / "state").exists(), "something was made before the settings were right"


WRONG_SETTINGS = {
    "LANEWAY_NOSUCH": ("1", "LANEWAY_NOSUCH", "nosuch"),
    "LANEWAY_SERVER__NOSUCH": ("1", "LANEWAY_SERVER__NOSUCH", "server.nosuch", "host, port"),
    "LANEWAY_SERVER__HOST": ("0.0.0.0", "LANEWAY_SERVER__HOST", "server.host", "loopback"),
    "LANEWAY_EVENTS__HEARTBEAT_SECONDS": ("0", "events.heartbeat_seconds", "0.05 to 300"),
    "LANEWAY_QUEUE__MODE": ("steer", "queue.mode", "not available", "followup"),
    "LANEWAY_CONFIG": ("/nonexistent/laneway.toml", "/nonexistent/laneway.toml"),
}


@pytest.mark.parametrize("variable", WRONG_SETTINGS)
def test_a_setting_that_is_wrong_is_named_with_what_is_allowed(tmp_path: Path, variable: str) -> None:
    value, *words = WRONG_SETTINGS[variable]
    check_refused(start(tmp_path / "state", environ={variable: value}), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [("[server]\nnosuch = 1\n", ["server.nosuch", "laneway.toml"]), ("[server\n", ["laneway.toml"])],
    ids=["unknown key", "no TOML"],
)
def test_a_settings_file_that_is_wrong_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    (tmp_path / "laneway.toml").write_text(text)
    check_refused(start(tmp_path / "state"), *words)


UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]


def _as_a_user() -> list[str]:
    """What to put before a command so that file modes mean something to it."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv to give up root's right to write everything")
    return UNPRIVILEGED


@pytest.fixture
async def stopped(service: ServiceFactory) -> Service:
    """A service that has run and was stopped."""
    one = service()
    async with one:
        await one.ended(await one.run("x", "before"))
        one.terminate()
        await one.until_exit()
    return one


@pytest.mark.sqlite
async def test_a_database_that_cannot_be_written_is_told_so(stopped: Service) -> None:
    """The file, its folder, the lock, or the place where the folder should be."""
    user, state = _as_a_user(), stopped.state_dir
    stopped.database.chmod(0o444)
    check_refused(start(state, before=user), str(stopped.database), "read-only")
    stopped.database.chmod(0o600)
    state.chmod(0o500)
    check_refused(start(state, before=user), str(state), "not writable")
    state.chmod(0o700)
    (state / "laneway.lock").chmod(0o400)
    check_refused(start(state, before=user), str(state), "cannot be locked")
    (state / "laneway.lock").chmod(0o600)
    closed = state.parent / "closed"
    closed.mkdir(mode=0o500)
    check_refused(start(closed / "state", before=user), str(closed / "state"), "cannot be made")
    (state.parent / "file").write_text("no folder")
    check_refused(start(state.parent / "file", before=user), str(state.parent / "file"), "cannot be made")
    await stopped.up()
    assert len(await stopped.runs()) == 1


def test_a_disk_that_is_full_is_told_so(tmp_path: Path) -> None:
    """Before there is a database, and with one."""
    with small_disk(tmp_path / "disk", megabytes=4) as disk:
        disk.fill()
        check_refused(start(disk.path, folder=tmp_path), "full")
        disk.clear()
        disk.fill(leave_bytes=20_000)
        check_refused(start(disk.path, folder=tmp_path), "full")
