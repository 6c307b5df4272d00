"""Commands: what they return, what they may not see, and that nothing of them is left, whoever dies."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import uvloop

from app.tools.contract import ArgumentsInvalid, Text, ToolBlocked, ToolFailed, ToolTimedOut
from app.tools.exec import ExecTool
from app.tools.process import guarded, kill_group
from tests.kit.gauges import until
from tests.kit.tool_context import Context, output, said

ANY = ExecTool("full", (), 60)
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
SPAWNING = "(sleep 71 &) ; sleep 71 & setsid sleep 71 & nohup setsid sh -c 'sleep 71 & sleep 71' >/dev/null 2>&1 &"


def left(seconds: str = "71") -> list[psutil.Process]:
    """Living processes of a test's commands, known by how long they sleep."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE and (process.info["cmdline"] or [])[-2:] == [
            "sleep",
            seconds,
        ]:
            found.append(process)
    return found


def children() -> set[int]:
    """What descends from this process; services that other tests share are among it."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize(
    ("command", "text", "is_error"),
    [
        ("echo hi; echo err >&2; echo bye", "hi\nerr\nbye\n", False),
        ("true", "[exit code 0, ", False),
        ("echo x; exit 3", "x\n[exit code 3, ", True),
        ("printf x; exit 3", "x\n[exit code 3, ", True),
        ("kill -9 $$", "[exit code 137, ", True),
        ("nosuchcommand", "not found", True),
        ("cat", "[exit code 0, ", False),
    ],
)
async def test_output_and_status_are_returned(tmp_path: Path, command: str, text: str, is_error: bool) -> None:
    returned = await output(ANY, tmp_path, command=command)
    [part] = returned.content
    assert isinstance(part, Text) and text in part.text
    assert returned.is_error == is_error


async def test_a_flood_is_drained_and_bounded(tmp_path: Path) -> None:
    text = await said(ANY, tmp_path, command="echo begin; head -c 30000000 /dev/zero | tr '\\0' x; echo; echo end")
    assert text.startswith("begin\nxxx") and text.endswith("xxx\nend\n")
    assert len(text) < 263_000 and "bytes omitted" in text


async def test_bytes_that_are_no_text_are_replaced_and_characters_stay_whole(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes("日本".encode() * 60_000 + b"\xff")
    context = Context(tmp_path)
    work = await ANY.prepare({"command": "cat f"}, context)
    [part] = (await work.run()).content
    assert isinstance(part, Text) and part.text.count("\ufffd") <= 4
    assert "".join(context.shown) == "日本" * 60_000 + "\ufffd"[: "".join(context.shown).count("\ufffd")]


async def test_a_command_sees_nothing_of_the_services_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "LANEWAY_SECRET_KEY", "AWS_SECRET_ACCESS_KEY", "HTTP_PROXY"):
        monkeypatch.setenv(name, "hush")
    text = await said(ANY, tmp_path, command="env; pwd")
    assert "hush" not in text and f"HOME={tmp_path}" in text and text.endswith(f"{tmp_path}\n")
    assert "LANEWAY_TOOL_CALL=01a0-call" in text


async def test_where_it_runs_is_in_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "out").symlink_to("/tmp")
    assert await said(ANY, tmp_path, command="pwd", workdir="sub") == f"{tmp_path / 'sub'}\n"
    for workdir in ("..", "/tmp", "out", "sub/../.."):
        with pytest.raises(ToolBlocked, match="leads out"):
            await said(ANY, tmp_path, command="pwd", workdir=workdir)
    with pytest.raises(ToolFailed, match="no such folder"):
        await said(ANY, tmp_path, command="pwd", workdir="nothing")
    for workdir in ("a\0b", "x" * 300):
        with pytest.raises(ArgumentsInvalid, match="workdir"):
            await said(ANY, tmp_path, command="pwd", workdir=workdir)


async def test_arguments_that_cannot_be_run_are_refused(tmp_path: Path) -> None:
    for args in (
        {"command": ""},
        {"command": "a\0b"},
        {"command": "x" * 100_001},
        {"command": "ls", "timeoutSeconds": 0},
    ):
        with pytest.raises(ArgumentsInvalid):
            await ANY.prepare(args, Context(tmp_path))
    for security, words in (("deny", "not allowed here"), ("allowlist", "not on the allow list")):
        with pytest.raises(ToolBlocked, match=words):
            await ExecTool(security, ("ls",), 60).prepare({"command": "rm x"}, Context(tmp_path))  # type: ignore[arg-type]


async def test_its_own_limit_stops_it_and_what_had_come_is_told(tmp_path: Path) -> None:
    with pytest.raises(ToolTimedOut, match=r"so far\n\[stopped after its limit of 0.5 s\]"):
        await said(ANY, tmp_path, command=f"trap '' TERM; echo so far; {SPAWNING} sleep 71", timeoutSeconds=0.5)
    await until(lambda: not left(), "nothing is left")


async def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    assert await said(ANY, tmp_path, command=f"{SPAWNING} echo started") == "started\n"
    assert not left()


async def test_a_cancelled_command_takes_everything_with_it(tmp_path: Path) -> None:
    before = children()
    context = Context(tmp_path)
    work = await ANY.prepare({"command": f"trap '' TERM; {SPAWNING} sleep 71"}, context)
    task = asyncio.ensure_future(work.run())
    await until(lambda: len(left()) >= 5, "it has spawned")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not left()
    assert children() == before


async def test_processes_that_multiply_lose(tmp_path: Path) -> None:
    """Bounded: each of the first generation makes one more now and then, as long as it lives."""
    command = "for i in 1 2 3 4 5 6; do (while :; do (sleep 73 & ) ; sleep 0.02; done) & done; sleep 73"
    task = asyncio.ensure_future(said(ANY, tmp_path, command=command))
    await until(lambda: len(left("73")) >= 30, "they multiply")
    task.cancel()
    await asyncio.wait({task})
    assert not left("73")


async def test_nothing_is_left_after_many_commands(tmp_path: Path) -> None:
    await said(ANY, tmp_path, command="true")
    process = psutil.Process()
    before, here = (process.num_fds(), process.num_threads()), children()
    for _ in range(10):
        await asyncio.gather(*(said(ANY, tmp_path, command="echo x & echo y") for _ in range(5)))
    assert children() == here
    assert process.num_fds() <= before[0] + 2 and process.num_threads() <= before[1] + 8


async def test_nothing_runs_before_the_group_is_durable(tmp_path: Path) -> None:
    class Refusing(Context):
        async def own_group(self, group: str) -> None:
            await super().own_group(group)
            await asyncio.sleep(0.1)
            raise RuntimeError("not durable")

    before = children()
    context = Refusing(tmp_path)
    work = await ANY.prepare({"command": "echo > ran.txt"}, context)
    with pytest.raises(RuntimeError, match="not durable"):
        await work.run()
    assert context.groups and not (tmp_path / "ran.txt").exists()
    assert children() == before


OWNER = """
import asyncio, sys
from pathlib import Path
from app.tools.process import guarded

async def main():
    async with guarded(sys.argv[1], Path(sys.argv[2]), {"PATH": "/usr/bin:/bin"}, "01a0-owner") as one:
        print(one.group, flush=True)
        one.go()
        await asyncio.sleep(100)

asyncio.run(main())
"""


def owner(command: str, folder: Path) -> tuple[subprocess.Popen[str], str]:
    """A process of its own that runs a guarded command; and the group."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), command, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


async def test_a_killed_owner_takes_everything_with_it(tmp_path: Path) -> None:
    process, _ = owner(f"{SPAWNING} sleep 71", tmp_path)
    await until(lambda: len(left()) >= 5, "it has spawned")
    process.kill()
    process.wait()
    await until(lambda: not left(), "nothing is left")


@pytest.mark.parametrize("guard", ["stopped", "killed"])
async def test_a_group_can_be_killed_when_its_guard_cannot_act(tmp_path: Path, guard: str) -> None:
    process, group = owner("sleep 72 & setsid sleep 72 & sleep 72", tmp_path)
    await until(lambda: len(left("72")) >= 3, "it has spawned")
    os.kill(int(group.split(":")[1]), signal.SIGSTOP if guard == "stopped" else signal.SIGKILL)
    process.kill()
    process.wait()
    assert len(left("72")) >= 3
    assert await kill_group(group)
    assert not left("72")
    assert not await kill_group(group), "there is nothing left to kill"


async def test_only_the_very_group_is_killed(tmp_path: Path) -> None:
    async with guarded("sleep 74", tmp_path, {"PATH": "/usr/bin:/bin"}, "01a0-own") as one:
        one.go()
        await until(lambda: len(left("74")) == 1, "it runs")
        boot, pid, began, _ = one.group.split(":")
        for wrong in (
            f"other-boot:{pid}:{began}:01a0-own",
            f"{boot}:{pid}:{int(began) + 1}:another-call",
            f"{boot}:1:{began}:another-call",
            f"{boot}:x:{began}:01a0-own",
            f"{boot}:{pid}",
            "",
            ":::",
        ):
            assert not await kill_group(wrong), wrong
        assert len(left("74")) == 1
    assert not left("74")


async def test_a_script_that_is_stopped_does_not_go_on_with_its_next_line(tmp_path: Path) -> None:
    """Its child must not end before it is told itself."""
    for _ in range(15):
        task = asyncio.ensure_future(
            said(ANY, tmp_path, command="sh -c 'sh -c \"sleep 75; echo > late\"; echo > later'")
        )
        await until(lambda: len(left("75")) == 1, "it runs")
        task.cancel()
        await asyncio.wait({task})
    assert list(tmp_path.iterdir()) == [] and not left("75")


@LOOPS
def test_a_command_has_no_handle_but_its_own(tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        text = runner.run(said(ANY, tmp_path, command="ls /proc/$$/fd"))
    assert text.split() == ["0", "1", "2"]


@LOOPS
def test_a_flood_is_stopped_by_its_guard_and_leaves_no_handle(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop], capfd: pytest.CaptureFixture[str]
) -> None:
    async def floods() -> int:
        await said(ANY, tmp_path, command="true")
        gc.disable()
        try:
            before = psutil.Process().num_fds()
            for _ in range(3):
                with pytest.raises(ToolTimedOut):
                    await said(ANY, tmp_path, command="yes", timeoutSeconds=0.2)
            await asyncio.sleep(0)
            return psutil.Process().num_fds() - before
        finally:
            gc.enable()

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(floods()) <= 0
    assert "guard-killed" not in capfd.readouterr().out


async def test_what_a_command_leaves_when_it_kills_its_guard_is_ended_with_the_call(tmp_path: Path) -> None:
    with pytest.raises(ToolTimedOut):
        await said(ANY, tmp_path, command="setsid sleep 77 & kill -9 $PPID; sleep 77", timeoutSeconds=0.5)
    assert not left("77")


async def test_all_that_is_stopped_has_the_moment_of_grace(tmp_path: Path) -> None:
    """Also what goes on when the command itself has ended at once."""
    tidy = "(trap 'sleep 0.4; echo > tidied; exit' TERM; echo ready; while :; do sleep 0.02; done)"
    for _ in range(3):
        (tmp_path / "tidied").unlink(missing_ok=True)
        with pytest.raises(ToolTimedOut, match="ready"):
            await said(ANY, tmp_path, command=f"{tidy} & sleep 71", timeoutSeconds=0.5)
        assert (tmp_path / "tidied").exists()


async def test_a_cut_leaves_whole_characters(tmp_path: Path) -> None:
    for shift in range(4):
        (tmp_path / "f").write_bytes(b"x" * shift + "\U0001f600日é".encode() * 60_000)
        assert "\ufffd" not in await said(ANY, tmp_path, command="cat f")
