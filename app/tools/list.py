"""The tool `list`: what a folder of the workspace has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from app.tools.arguments import Arguments, parse, schema
from app.tools.contract import Text, ToolContext, ToolOutput, Work
from app.tools.files import TIMEOUT_S, in_thread
from app.workspace.files import Workspace, entries

ENTRIES_MAX = 500
COUNT_MAX = 100_000
"""So many are looked at; a folder with more is said to have more."""

DEPTH_MAX = 5


class ListArguments(Arguments):
    """What the model may say."""

    path: str = Field(".", description="The folder, relative to the workspace.")
    depth: int = Field(1, ge=1, le=DEPTH_MAX, description="How many levels of folders.")


class ListTool:
    """See the module."""

    name = "list"
    description = (
        f"List a folder of the workspace: names, sizes in bytes, folders with a / behind them; at most {ENTRIES_MAX} "
        "entries. With depth also what its folders have."
    )
    parameters = schema(ListArguments)
    sequential = False

    async def prepare(self, args: dict[str, Any], context: ToolContext) -> Work:
        """Raises ArgumentsInvalid."""
        asked = parse(ListArguments, args)
        workspace = Workspace(context.workspace)

        async def run() -> ToolOutput:
            return await in_thread(lambda: _list(workspace, asked), asked.path)

        return Work(run, TIMEOUT_S)


def _list(workspace: Workspace, asked: ListArguments) -> ToolOutput:
    lines: list[str] = []
    count = 0
    with workspace.folder(asked.path) as folder:
        for line in _lines(folder, "", asked.depth):
            count += 1
            if count <= ENTRIES_MAX:
                lines.append(line)
            elif count >= COUNT_MAX:
                break
    if count > ENTRIES_MAX:
        more = f"at least {count - ENTRIES_MAX:,}" if count >= COUNT_MAX else f"{count - ENTRIES_MAX:,}"
        lines.append(f"[{more} more: list a folder of it, or search_files]")
    return ToolOutput((Text("\n".join(lines) or f"[{asked.path} is empty]"),))


def _lines(folder: int, above: str, depth: int) -> Iterator[str]:
    for entry in entries(folder):
        name = f"{above}{entry.name}"
        match entry.kind:
            case "folder":
                yield f"{name}/"
                if depth > 1:
                    yield from _inside(entry.name, folder, name, depth)
            case "link":
                yield f"{name} -> {entry.target}"
            case "file":
                yield f"{name} ({entry.size:,})"
            case _:
                yield f"{name} (no regular file)"


def _inside(name: str, folder: int, shown: str, depth: int) -> Iterator[str]:
    try:
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        yield f"{shown}/ (cannot be read)"
        return
    try:
        yield from _lines(inner, f"{shown}/", depth - 1)
    finally:
        os.close(inner)
