"""Commands run to their end, and starts that are expected to fail, checked to say why in one line."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.kit.environment import clean_environ
from tests.kit.process import Process

START_S = 60.0


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


def start(
    state_dir: Path,
    *arguments: str,
    command: str = "serve",
    environ: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
    folder: Path | None = None,
) -> Ended:
    """Start the service, on a free port unless it is told another, and wait for its end.

    With something to stand `before` it, it is a process from scratch.
    """
    given = [command, *(arguments or (("--port", "0") if command == "serve" else ()))]
    full = {"LANEWAY_STATE_DIR": str(state_dir), **(environ or {})}
    place = folder or state_dir.parent
    if before:
        return _from_scratch([*before, sys.executable, "-m", "app.cli", *given], full, place)
    return Command(*given, environ=full, folder=place).wait_ended()


class Command:
    """A command of the service that runs; `environ` is beside the usual, `stdin` is what it is given to read."""

    def __init__(
        self, *arguments: str, environ: Mapping[str, str], folder: Path | None = None, stdin: bytes = b""
    ) -> None:
        self._files = tempfile.TemporaryDirectory(prefix="lw-command-")
        place = Path(self._files.name)
        self._errors = place / "err"
        (place / "in").write_bytes(stdin)
        self._process = Process(
            ["-m", "app.cli", *arguments], {**clean_environ(os.environ), **environ}, folder or place, place / "out",
            errors=self._errors, stdin=place / "in",
        )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self._process.alive

    def wait_ended(self) -> Ended:
        """Block until it has ended."""
        try:
            return self._told(self._process.wait_exit(START_S))
        finally:
            self._process.end()

    async def until_ended(self) -> Ended:
        """As `wait_ended`, awaited."""
        try:
            return self._told(await self._process.until_exit(START_S))
        finally:
            self._process.end()

    def _told(self, code: int) -> Ended:
        ended = Ended(code, self._process.output, self._errors.read_text("utf-8"))
        self._files.cleanup()
        return ended


def _from_scratch(command: Sequence[str], environ: Mapping[str, str], folder: Path) -> Ended:
    done = subprocess.run(
        command,
        env={**clean_environ(os.environ), **environ},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def check_refused(ended: Ended, *words: str) -> str:
    """One line on standard error that holds these words; log lines in JSON may stand before it."""
    assert ended.code == 1, ended
    assert "Traceback" not in ended.err and ended.out == "", ended
    lines = [line for line in ended.err.splitlines() if not line.startswith("{")]
    assert len(lines) == 1 and lines[0].startswith("laneway: "), ended.err
    for word in words:
        assert word in lines[0], f"{word!r} is not in: {lines[0]}"
    return lines[0]
