"""Starts that are expected to fail: run to their end, and checked to say why in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.kit.environment import clean_environ

START_S = 60.0


class Ended(NamedTuple):
    """How a start ended."""

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
    """Start the service, on a free port unless it is told another, and wait for its end."""
    free_port = ("--port", "0") if command == "serve" else ()
    done = subprocess.run(
        [*before, sys.executable, "-m", "app.cli", command, *(arguments or free_port)],
        env={**clean_environ(os.environ), "LANEWAY_STATE_DIR": str(state_dir), **(environ or {})},
        cwd=folder or state_dir.parent,
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
