"""Standard output as the commands write it: any text fits, and nobody reading it any more is an end, not a crash."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
from typing import Any

NOBODY_READS = 141
"""What a shell shows for a program that SIGPIPE has ended, as behind `| head`."""

_UNSEEN = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""In JSON these may stand as they are, but a terminal obeys some, some end a line, and halves of pairs are no UTF-8."""


class OutputLost(Exception):
    """Standard output takes no more. Says it itself when there is something to say."""

    def __init__(self, problem: OSError) -> None:
        super().__init__(str(problem))
        self._problem = problem

    def leave(self) -> int:
        """Tell why, if it was not the reader who left; returns the exit code. What is still buffered is dropped."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
        if self._problem.errno == errno.EPIPE:
            return NOBODY_READS
        why = self._problem.strerror or type(self._problem).__name__
        print(f"laneway: Standard output cannot be written: {why}", file=sys.stderr)
        return 1


class _Output(io.TextIOWrapper):
    """Raises OutputLost where a stream raises OSError, so that it cannot be taken for a failure of something else."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as problem:
            raise OutputLost(problem) from None

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as problem:
            raise OutputLost(problem) from None


def prepare_output() -> None:
    """Once, before anything is written. A character that the stream cannot hold is written as another one."""
    if sys.stdout is None:  # closed by the caller, who wants nothing
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - open until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    given = sys.stdout
    if type(given) is io.TextIOWrapper:
        encoding, by_line, through = given.encoding, given.line_buffering, given.write_through
        sys.stdout = _Output(given.detach(), encoding, errors="replace", line_buffering=by_line, write_through=through)


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON that is safe to look at and to read line by line, whatever texts it holds."""
    readable = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, ensure_ascii=not readable, indent=indent, separators=separators, default=str)
    return _UNSEEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
