"""A tool called without a service: a context, and calls that give the text or the failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.tools.contract import Image, Text, Tool, ToolOutput


class Context:
    """As the loop gives it to a call; keeps what was shown and which group was owned."""

    def __init__(self, workspace: Path, call_id: str = "01a0-call") -> None:
        self.call_id = call_id
        self.workspace = workspace
        self.shown: list[str] = []
        self.groups: list[str] = []

    def update(self, text: str) -> None:
        self.shown.append(text)

    async def own_group(self, group: str) -> None:
        self.groups.append(group)


async def output(tool: Tool, workspace: Path, **args: Any) -> ToolOutput:
    """Prepare and run. Raises what the tool raises."""
    work = await tool.prepare(args, Context(workspace))
    return await work.run()


async def said(tool: Tool, workspace: Path, **args: Any) -> str:
    """The text of the result; images as their type."""
    parts = (await output(tool, workspace, **args)).content
    return "".join(
        part.text if isinstance(part, Text) else part.mime_type for part in parts if isinstance(part, Text | Image)
    )
