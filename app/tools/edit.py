"""The tool `edit`: a part of a file exchanged for another, when it is clear which part is meant."""

from __future__ import annotations

import os
from typing import Any

from pydantic import Field

from app.tools.arguments import Arguments, parse, schema
from app.tools.contract import ArgumentsInvalid, Text, ToolContext, ToolFailed, ToolOutput, Work
from app.tools.files import SNIFF_BYTES, TEXT_BYTES_MAX, TIMEOUT_S, in_thread, is_binary
from app.workspace.files import Workspace


class EditArguments(Arguments):
    """What the model may say."""

    path: str = Field(description="The file, relative to the workspace.")
    oldText: str = Field(min_length=1, description="The text to replace, exactly as it stands in the file.")
    newText: str = Field(description="What is to stand there.")
    replaceAll: bool = Field(False, description="Replace every occurrence; else there must be exactly one.")


class EditTool:
    """See the module."""

    name = "edit"
    description = (
        "Replace a part of a text file of the workspace. oldText must stand there exactly once, so take in enough of "
        "the lines around it; with replaceAll every occurrence is replaced."
    )
    parameters = schema(EditArguments)
    sequential = True

    async def prepare(self, args: dict[str, Any], context: ToolContext) -> Work:
        """Raises ArgumentsInvalid."""
        asked = parse(EditArguments, args)
        if asked.oldText == asked.newText:
            raise ArgumentsInvalid("newText: it is the same as oldText; nothing would change.")
        workspace = Workspace(context.workspace)

        async def run() -> ToolOutput:
            return await in_thread(lambda: _edit(workspace, asked), asked.path)

        return Work(run, TIMEOUT_S)


def _edit(workspace: Workspace, asked: EditArguments) -> ToolOutput:
    before = _content(workspace, asked.path)
    old, new = (text.encode("utf-8", "replace") for text in (asked.oldText, asked.newText))
    count = before.count(old)
    ends = before.count(b"\r\n")
    if ends and (not count or ends == before.count(b"\n")):
        # Models write plain line ends; the file keeps its own.
        old, new = (text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") for text in (old, new))
        count = before.count(old)
    if not count:
        raise ToolFailed(f"{asked.path}: oldText does not stand in it. Read the file, and copy the part exactly.")
    if count > 1 and not asked.replaceAll:
        raise ToolFailed(
            f"{asked.path}: oldText stands in it {count} times. Take in more of the lines around it, or set replaceAll."
        )
    size = len(before) + count * (len(new) - len(old))
    if size > TEXT_BYTES_MAX:  # known before it is made, which may take more memory than there is
        raise ToolFailed(f"{asked.path}: it would have {size:,} bytes; allowed are {TEXT_BYTES_MAX:,}.")
    workspace.write(asked.path, before.replace(old, new))
    line = before[: before.find(old)].count(b"\n") + 1
    where = f"line {line}" if count == 1 else f"{count} places, the first in line {line}"
    return ToolOutput((Text(f"{asked.path}: changed in {where}."),))


def _content(workspace: Workspace, path: str) -> bytes:
    with workspace.open(path) as (handle, found):
        if found.st_size > TEXT_BYTES_MAX:
            raise ToolFailed(f"{path}: {found.st_size:,} bytes; at most {TEXT_BYTES_MAX:,} can be edited.")
        data = b""
        while len(data) <= TEXT_BYTES_MAX and (piece := os.read(handle, 1 << 20)):
            data += piece
    if is_binary(data[:SNIFF_BYTES]):
        raise ToolFailed(f"{path}: a binary file of {len(data):,} bytes, no text.")
    return data
