"""A tool that does as it is told: waits, shows, returns, fails or misbehaves, and keeps a log of its own.

The log is a file of lines `begin|end <toolCallId> <marker>`, each written in one piece: what really ran, whatever the
service says. Its arguments are a JSON object as in `ARGUMENTS`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from app.tools.contract import ArgumentsInvalid, Image, Text, ToolBlocked, ToolContext, ToolFailed, ToolOutput, Work

LOG_VARIABLE = "PROBE_LOG"

ARGUMENTS: dict[str, Any] = {
    "marker": "",  # stands in the log and in the result
    "seconds": 0.0,  # of work
    "ignore": 0.0,  # seconds for which a cancellation is ignored
    "limit": 600.0,  # the call's own time limit
    "how": "return",
    "size": 0,  # characters of text that are returned beside the marker
    "show": [],  # texts that are shown before the work
    "prepare": 0.0,  # seconds that the check of the call takes
}
"""`how`: return, fail, error-result, blocked, invalid, exit, interrupt, raise, cancel, image, fake-image, bytes."""


class Line(NamedTuple):
    """A line of the log."""

    what: str
    call_id: str
    marker: str


def read_log(path: Path) -> list[Line]:
    """All lines so far; none when nothing has run."""
    if not path.exists():
        return []
    return [Line(*line.split(" ", 2)) for line in path.read_text().split("\n") if line]


class Probe:
    """See the module. Two of them are in the service of `tool_service`: `probe` and `probe_in_order`."""

    description = "Does what the arguments say."
    parameters: Mapping[str, Any] = {"type": "object", "properties": {name: {} for name in ARGUMENTS}}

    def __init__(self, name: str, log: Path, *, sequential: bool = False) -> None:
        self.name = name
        self.sequential = sequential
        self._log = log

    async def prepare(self, args: dict[str, Any], context: ToolContext) -> Work:
        """Refuses unknown arguments."""
        unknown = args.keys() - ARGUMENTS.keys()
        if unknown:
            raise ArgumentsInvalid(f"unknown arguments: {', '.join(sorted(unknown))}")
        asked = {**ARGUMENTS, **args}
        if asked["prepare"]:
            await asyncio.sleep(asked["prepare"])
        if asked["how"] == "blocked":
            raise ToolBlocked(f"not allowed: {asked['marker']}")
        if asked["how"] == "invalid":
            raise ArgumentsInvalid("marker: not this one")
        return Work(lambda: self._run(asked, context), asked["limit"])

    async def _run(self, asked: dict[str, Any], context: ToolContext) -> ToolOutput:
        self._write("begin", context.call_id, asked["marker"])
        try:
            for text in asked["show"]:
                context.update(text)
            await self._work(asked["seconds"], asked["ignore"])
            return await self._end(asked)
        finally:
            self._write("end", context.call_id, asked["marker"])

    async def _work(self, seconds: float, ignore: float) -> None:
        until = time.monotonic() + seconds
        deaf_until = time.monotonic() + ignore
        while (left := until - time.monotonic()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                if time.monotonic() >= deaf_until:
                    raise
                until = deaf_until

    async def _end(self, asked: dict[str, Any]) -> ToolOutput:
        marker, size = asked["marker"], asked["size"]
        match asked["how"]:
            case "fail":
                raise ToolFailed(f"it failed: {marker}")
            case "error-result":
                return ToolOutput((Text(f"went wrong: {marker}"),), is_error=True)
            case "exit":
                raise SystemExit(marker)
            case "interrupt":
                raise KeyboardInterrupt(marker)
            case "raise":
                raise RuntimeError(marker)
            case "cancel":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            case "image":
                return ToolOutput((Text(marker), Image("image/png", b"\x89PNG\r\n\x1a\n" + bytes(size))))
            case "fake-image":
                return ToolOutput((Text(marker), Image("image/png", b"no image at all" + bytes(size))))
            case "bytes":
                return ToolOutput((Text(marker + (b"\xff\xfe\x80" * size).decode("utf-8", "replace")),))
            case _:
                pass
        filler = ("line of text\n" * (size // 13 + 1))[:size]
        return ToolOutput((Text(f"{marker}\n{filler}" if size else marker),))

    def _write(self, what: str, call_id: str, marker: str) -> None:
        handle = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, f"{what} {call_id} {marker}\n".encode())
        finally:
            os.close(handle)
