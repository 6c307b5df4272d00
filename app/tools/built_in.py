"""The tools that come with the service, as the settings want them."""

from __future__ import annotations

from app.settings import Settings
from app.tools.contract import Tool
from app.tools.edit import EditTool
from app.tools.exec import ExecTool
from app.tools.list import ListTool
from app.tools.read import ReadTool
from app.tools.search_files import SearchFilesTool
from app.tools.web_fetch import WebFetchTool
from app.tools.write import WriteTool


def built_in_tools(settings: Settings) -> list[Tool]:
    """In the order in which models are told of them."""
    tools = settings.tools
    return [
        ReadTool(),
        WriteTool(),
        EditTool(),
        ListTool(),
        SearchFilesTool(),
        ExecTool(tools.exec.security, tools.exec.allowlist, tools.exec.timeout_seconds),
        WebFetchTool(tools.web_fetch.allow_hosts),
    ]
