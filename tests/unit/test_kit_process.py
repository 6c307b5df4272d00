"""The process under test, with a stand-in program: ready line, output, signals, exit codes, and none left behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.kit.environment import ROOT, clean_environ, variable, written
from tests.kit.process import Process, StartFailed

STAND_IN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("starting in", os.getcwd(), flush=True)
print("Laneway ready on http://127.0.0.1:4711", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    time.sleep(0.01)
"""

SERVICE = ["-m", "app.cli", "serve", "--port", "0"]


@contextlib.contextmanager
def started(program: str, folder: Path) -> Iterator[Process]:
    process = Process(["-c", program], clean_environ(os.environ), folder, folder / "out.log")
    try:
        yield process
    finally:
        process.end()


def test_ready_line_output_and_sigterm(tmp_path: Path) -> None:
    with started(STAND_IN, tmp_path) as process:
        process.wait_ready(10)
        assert process.address == "http://127.0.0.1:4711"
        assert f"starting in {tmp_path}" in process.output
        assert process.alive and process.exit_code is None
        process.terminate()
        assert process.wait_exit(5) == 7


async def test_sigkill_and_a_second_life_in_the_same_log(tmp_path: Path) -> None:
    with started(STAND_IN, tmp_path) as process:
        await process.until_ready(10)
        process.end()
        assert await process.until_exit(1) == -9
    with started("print('second')", tmp_path) as process:
        assert process.wait_exit(5) == 0
        assert process.output == "second\n"
    assert "starting" in (tmp_path / "out.log").read_text("utf-8")


def test_a_paused_process_can_be_ended(tmp_path: Path) -> None:
    with started(STAND_IN, tmp_path) as process:
        process.wait_ready(10)
        process.pause()
        until = time.monotonic() + 5
        while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < until
        process.resume()
        process.pause()
    assert process.exit_code == -9


def test_failures_to_start_show_the_output(tmp_path: Path) -> None:
    failing = "print('no luck'); raise SystemExit(2)"
    with started(failing, tmp_path) as process, pytest.raises(StartFailed, match=r"ended with 2[^$]*no luck"):
        process.wait_ready(10)
    with started("import time; print('thinking', flush=True); time.sleep(60)", tmp_path) as process:
        with pytest.raises(StartFailed, match=r"not ready in time[^$]*thinking"):
            process.wait_ready(0.5)
        assert not process.alive


@pytest.mark.parametrize("arguments", [["-c", STAND_IN], SERVICE], ids=["started", "forked"])
def test_it_dies_with_its_parent(tmp_path: Path, arguments: list[str]) -> None:
    program = (
        "import json, os, pathlib, sys\n"
        "from tests.kit.process import Process\n"
        "folder = pathlib.Path(os.environ['LANEWAY_STATE_DIR'])\n"
        "one = Process(json.loads(sys.argv[1]), dict(os.environ), folder, folder / 'out.log')\n"
        "one.wait_ready(60)\n"
        "print(one.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    environ = {**clean_environ(os.environ), "LANEWAY_STATE_DIR": str(tmp_path)}
    parent = subprocess.run(
        [sys.executable, "-c", program, json.dumps(arguments)],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    pid = int(parent.stdout)
    until = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until, f"process {pid} outlived its parent"
        time.sleep(0.01)


def test_the_environment_is_clean() -> None:
    caller = {"LANEWAY_QUEUE__MODE": "x", "SOME_API_KEY": "x", "https_proxy": "x", "NO_PROXY": "x", "PATH": "/bin"}
    assert clean_environ(caller) == {"PATH": "/bin", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    assert variable("agents.defaults.model") == "LANEWAY_AGENTS__DEFAULTS__MODEL"
    assert [written(value) for value in (True, ["a", "b"], 1.5, "x")] == ["true", "a,b", "1.5", "x"]


@contextlib.contextmanager
def served(folder: Path, **environ: str) -> Iterator[Process]:
    environ = {**clean_environ(os.environ), "LANEWAY_STATE_DIR": str(folder / "state"), **environ}
    process = Process(SERVICE, environ, folder, folder / "out.log")
    try:
        process.wait_ready(60)
        yield process
    finally:
        process.end()


def test_a_service_is_forked_and_is_a_process_like_any_other(tmp_path: Path) -> None:
    with served(tmp_path) as process:
        living = psutil.Process(process.pid)
        assert living.ppid() != os.getpid() and psutil.Process(living.ppid()).ppid() == os.getpid()
        assert living.cwd() == str(tmp_path) and os.getsid(process.pid) == process.pid
        assert {Path(file.path).parent for file in living.open_files()} <= {tmp_path, tmp_path / "state"}
        process.terminate()
        assert process.wait_exit(30) == 0
    with served(tmp_path) as process:
        process.end()
        assert process.exit_code == -9
    with served(tmp_path) as process, pytest.raises(StartFailed, match="ended with 1"):
        Process(
            SERVICE,
            {**clean_environ(os.environ), "LANEWAY_STATE_DIR": str(tmp_path / "state")},
            tmp_path,
            tmp_path / "second.log",
        ).wait_ready(60)


def test_what_python_reads_at_its_start_makes_a_start_of_its_own(tmp_path: Path) -> None:
    with served(tmp_path, LC_ALL="C") as process:
        assert psutil.Process(process.pid).ppid() == os.getpid()
