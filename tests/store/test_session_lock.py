"""The session write lock as a file: who gets it, what its error says, and what stands where the file should be."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from pathlib import Path

import pytest

from app.clock import SystemClock
from app.errors import SessionBusy, StartError
from app.store.contract import LockUnusable
from app.store.session_lock import RECORD_BYTES_MAX, LockReentered, SessionLocks
from tests.kit.lock_holder import LockHolder

KEY = "one/../two"


def locks_of(state_dir: Path, timeout_ms: int = 0) -> SessionLocks:
    locks = SessionLocks(state_dir, SystemClock(), timeout_ms=timeout_ms)
    locks.prepare()
    return locks


def file_of(state_dir: Path, key: str = KEY) -> Path:
    return state_dir / "locks" / f"{hashlib.sha256(key.encode()).hexdigest()}.lock"


async def test_a_file_for_its_owner_alone_stays_and_is_empty_afterwards(tmp_path: Path) -> None:
    locks = locks_of(tmp_path)
    async with locks.hold(KEY, "a run"):
        assert b'"a run"' in file_of(tmp_path).read_bytes()
        async with locks.hold("another", "a run"):
            pass
    assert file_of(tmp_path).read_bytes() == b""
    assert stat.S_IMODE(file_of(tmp_path).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o700


async def test_the_error_names_the_process_that_holds_it(tmp_path: Path) -> None:
    async with LockHolder(tmp_path, KEY, "run 17") as holder:
        with pytest.raises(SessionBusy) as caught:
            async with locks_of(tmp_path, 50).hold(KEY, "another"):
                pass
        assert f"run 17 (process {holder.pid}, since 2" in str(caught.value) and "(50 ms)" in str(caught.value)


async def test_a_killed_holder_is_taken_over_at_once_and_the_log_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with LockHolder(tmp_path, KEY, "run 17") as holder:
        await holder.kill()
        async with locks_of(tmp_path).hold(KEY, "another"):
            assert b'"another"' in file_of(tmp_path).read_bytes()
    out = "".join(capsys.readouterr())
    assert "session-lock.taken-over" in out and f"run 17 (process {holder.pid}" in out


async def test_a_waiter_goes_on_when_it_is_let_go(tmp_path: Path) -> None:
    async with LockHolder(tmp_path, KEY) as holder:
        locks = locks_of(tmp_path, 60_000)
        got = asyncio.Event()

        async def wait() -> None:
            async with locks.hold(KEY, "a waiter"):
                got.set()

        waiter = asyncio.create_task(wait())
        await asyncio.sleep(0.05)
        assert not got.is_set()
        await holder.let_go()
        await asyncio.wait_for(waiter, 60)


async def test_a_waiter_that_is_cancelled_holds_nothing(tmp_path: Path) -> None:
    async with LockHolder(tmp_path, KEY) as holder:
        locks = locks_of(tmp_path, 60_000)
        waiter = asyncio.create_task(locks.hold(KEY, "a waiter").__aenter__())
        await asyncio.sleep(0.02)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        await holder.let_go()
        async with LockHolder(tmp_path, KEY):
            pass


async def test_the_holder_that_asks_again_is_refused_at_once_unless_it_says_that_it_may(tmp_path: Path) -> None:
    locks = locks_of(tmp_path, 60_000)
    async with locks.hold(KEY, "a run"):
        with pytest.raises(LockReentered, match="a run"):
            async with locks.hold(KEY, "a run"):
                pass
        async with locks.hold(KEY, "a run", allow_reentrant=True):
            pass
        with pytest.raises(SessionBusy):  # still held: leaving the inner block frees nothing
            async with locks_of(tmp_path).hold(KEY, "a run"):
                pass
    async with locks_of(tmp_path).hold(KEY, "a run"):
        pass


async def test_two_writers_of_one_process_wait_for_one_another(tmp_path: Path) -> None:
    locks = locks_of(tmp_path, 60_000)
    inside, most = 0, 0

    async def write(who: str) -> None:
        nonlocal inside, most
        async with locks.hold(KEY, who):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1

    await asyncio.gather(*(write(f"writer {number}") for number in range(8)))
    assert most == 1


@pytest.mark.parametrize("kind", ["symlink", "folder", "pipe"])
async def test_what_is_no_plain_file_is_refused_and_named(tmp_path: Path, kind: str) -> None:
    locks = locks_of(tmp_path, 60_000)
    path, target = file_of(tmp_path), tmp_path / "target"
    {"symlink": lambda: path.symlink_to(target), "folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}[kind]()
    with pytest.raises(LockUnusable, match=path.name):
        async with locks.hold(KEY, "a run"):
            pass
    assert not target.exists()


UNREADABLE = (
    b"{",
    b"\0" * 9,
    b"[]",
    b'{"pid":"x"}',
    b'{"pid":1,"host":"h","who":"\\n","since":""}',
    b"x" * (1 << 20),
)


@pytest.mark.parametrize("record", UNREADABLE, ids=["torn", "zeros", "list", "lacking", "unprintable", "huge"])
async def test_a_record_that_no_holder_wrote_changes_nothing(tmp_path: Path, record: bytes) -> None:
    path = file_of(tmp_path)
    locks = locks_of(tmp_path)
    path.write_bytes(record)
    async with locks.hold(KEY, "a run"):
        assert len(path.read_bytes()) < RECORD_BYTES_MAX
        path.write_bytes(record)
        with pytest.raises(SessionBusy, match="did not say who it is"):
            async with locks_of(tmp_path).hold(KEY, "another"):
                pass
    assert path.read_bytes() == b""


@pytest.mark.parametrize("kind", ["file", "symlink"])
def test_a_folder_that_is_none_stops_the_start(tmp_path: Path, kind: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    place = tmp_path / "locks"
    place.write_text("") if kind == "file" else place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartError, match=str(place)):
        locks_of(tmp_path)
