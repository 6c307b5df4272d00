"""The tool `write`: a file's whole content, at once."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from app.tools.arguments import Arguments, parse, schema
from app.tools.contract import ArgumentsInvalid, Text, ToolContext, ToolOutput, Work
from app.tools.files import TEXT_BYTES_MAX, TIMEOUT_S, in_thread
from app.workspace.files import Workspace


class WriteArguments(Arguments):
    """What the model may say."""

    path: str = Field(description="The file, relative to the workspace. Folders that are missing are made.")
    content: str = Field(description="All of its text.")


class WriteTool:
    """See the module."""

    name = "write"
    description = (
        "Write a text file of the workspace: make it, or replace all that is in it. To change a part use edit."
    )
    parameters = schema(WriteArguments)
    sequential = True

    async def prepare(self, args: dict[str, Any], context: ToolContext) -> Work:
        """Raises ArgumentsInvalid."""
        asked = parse(WriteArguments, args)
        data = asked.content.encode("utf-8", "replace")
        if len(data) > TEXT_BYTES_MAX:
            raise ArgumentsInvalid(f"content: {len(data):,} bytes; allowed are {TEXT_BYTES_MAX:,}.")
        workspace = Workspace(context.workspace)

        async def run() -> ToolOutput:
            what = await in_thread(lambda: workspace.write(asked.path, data), asked.path)
            return ToolOutput((Text(f"{asked.path}: {what}, {len(data):,} bytes."),))

        return Work(run, TIMEOUT_S)
