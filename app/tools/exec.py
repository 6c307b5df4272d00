"""The tool `exec`: a command in the workspace, in the foreground, under a guard, with bounds on time and output."""

from __future__ import annotations

import asyncio
import codecs
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from app.domain.wellformed import whole_begin, whole_end
from app.tools import allowlist
from app.tools.arguments import Arguments, parse, schema
from app.tools.contract import (
    ArgumentsInvalid,
    Text,
    ToolBlocked,
    ToolContext,
    ToolFailed,
    ToolOutput,
    ToolTimedOut,
    Work,
)
from app.tools.process import Guarded, guarded

COMMAND_BYTES_MAX = 100_000
"""What a system takes as one argument, with room to spare (Linux: 128 KiB)."""

HEAD_BYTES = 192 * 1024
TAIL_BYTES = 64 * 1024
"""Of a command's output; what lies between is passed over."""

SLACK_S = 10.0
"""Beyond the command's own limit, so that it is this tool that stops it and says so."""

_PASSED_ON = ("PATH", "TZ", "USER", "LOGNAME")
_FIXED = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "LANEWAY_SHELL": "exec",
}


class ExecArguments(Arguments):
    """What the model may say."""

    command: str = Field(min_length=1, description="The command line, for sh.")
    workdir: str = Field("", description="Folder in the workspace to run in. Default: the workspace itself.")
    timeoutSeconds: float | None = Field(None, gt=0, description="Stop it after so many seconds.")


class ExecTool:
    """See the module. `security` and `patterns` are `tools.exec.security` and `tools.exec.allowlist`."""

    name = "exec"
    sequential = True
    parameters = schema(ExecArguments)

    def __init__(
        self, security: Literal["deny", "allowlist", "full"], patterns: tuple[str, ...], timeout_seconds: float
    ) -> None:
        self._security = security
        self._patterns = patterns
        self._timeout_s = timeout_seconds

    @property
    def description(self) -> str:
        allowed = {
            "deny": "No command is allowed here.",
            "full": "Every command is allowed.",
            "allowlist": f"Allowed are {', '.join(self._patterns) or 'none'}, on paths of the workspace, "
            "joined by | && || and ; but without redirections, variables and substitutions.",
        }[self._security]
        return (
            "Run a command in the workspace and return its output and exit code. It has no input and no terminal, and "
            f"what it leaves running is stopped. {allowed}"
        )

    async def prepare(self, args: dict[str, Any], context: ToolContext) -> Work:
        """Raises ArgumentsInvalid, ToolBlocked, ToolFailed."""
        asked = parse(ExecArguments, args)
        size = len(asked.command.encode(errors="replace"))
        if size > COMMAND_BYTES_MAX:
            raise ArgumentsInvalid(f"command: {size:,} bytes; allowed are {COMMAND_BYTES_MAX:,}. Write a script first.")
        if "\0" in asked.command:
            raise ArgumentsInvalid("command: a NUL character; leave it out.")
        limit_s = self._timeout_s
        if asked.timeoutSeconds is not None:
            limit_s = min(limit_s, asked.timeoutSeconds)
        folder = await asyncio.to_thread(self._checked, asked, context.workspace)
        return Work(lambda: _run(asked.command, folder, limit_s, context), limit_s + SLACK_S)

    def _checked(self, asked: ExecArguments, workspace: Path) -> Path:
        """The folder to run in, when policy allows the command there."""
        if self._security == "deny":
            raise ToolBlocked("Commands are not allowed here (`tools.exec.security` is deny).")
        root = workspace.resolve()
        try:
            folder = (root / asked.workdir).resolve()
            there = folder.is_dir()
        except (OSError, RuntimeError, ValueError):
            raise ArgumentsInvalid("workdir: no path of a folder; name one in the workspace.") from None
        if not folder.is_relative_to(root):
            raise ToolBlocked("workdir: it leads out of the workspace; name a folder in it.")
        if not there:
            raise ToolFailed("workdir: there is no such folder in the workspace.")
        if self._security == "allowlist":
            allowlist.check(asked.command, self._patterns, root, folder)
        return folder


async def _run(command: str, folder: Path, limit_s: float, context: ToolContext) -> ToolOutput:
    begun_s = time.monotonic()
    kept = _Kept()
    try:
        async with guarded(command, folder, _environ(context.workspace), context.call_id) as process:
            await context.own_group(process.group)
            process.go()
            try:
                async with asyncio.timeout(limit_s):
                    await _read(process, kept, context)
                    status = await process.status()
            except TimeoutError:
                raise ToolTimedOut(kept.text(f"[stopped after its limit of {limit_s:g} s]")) from None
    except OSError as problem:
        raise ToolFailed(f"The command could not be started: {problem.strerror}.") from None
    seconds = time.monotonic() - begun_s
    if status or not kept.size:
        return ToolOutput((Text(kept.text(f"[exit code {status}, {seconds:.1f} s]")),), is_error=status != 0)
    return ToolOutput((Text(kept.text("")),))


async def _read(process: Guarded, kept: _Kept, context: ToolContext) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    async for data in process.output():
        kept.add(data)
        if text := decoder.decode(data):
            context.update(text)


def _environ(workspace: Path) -> dict[str, str]:
    """Built, never inherited: the service's own environment holds keys."""
    passed: Mapping[str, str] = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {"PATH": os.defpath, **passed, **_FIXED, "HOME": str(workspace)}


class _Kept:
    """The head and the tail of a command's output, in bounded memory."""

    def __init__(self) -> None:
        self.size = 0
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        self.size += len(data)
        room = HEAD_BYTES - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]

    def text(self, last_line: str) -> str:
        """What is kept, with a line of our own behind it."""
        tail = bytes(self._tail[-TAIL_BYTES:])
        omitted = self.size - len(self._head) - len(tail)
        if omitted:
            head, tail = whole_end(bytes(self._head)), whole_begin(tail)
            omitted = self.size - len(head) - len(tail)
            whole = head + f"\n[... {omitted:,} bytes omitted ...]\n".encode() + tail
        else:
            whole = bytes(self._head) + tail
        text = whole.decode(errors="replace")
        if not last_line:
            return text
        return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{last_line}"
