"""The tools of this process, by name, and which of them runs are offered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from app.domain.tool_policy import is_offered
from app.tools.contract import Tool

_NAME = re.compile(r"[a-z0-9_]{1,64}")


class ToolRegistry:
    """Built once by the assembly. Names are unique."""

    def __init__(self, tools: Iterable[Tool], *, allow: Iterable[str] = ("*",), deny: Iterable[str] = ()) -> None:
        allow, deny = tuple(allow), tuple(deny)
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            assert _NAME.fullmatch(tool.name), f"not a name for a tool: {tool.name!r}"
            assert tool.name not in self._tools, f"two tools named {tool.name!r}"
            self._tools[tool.name] = tool
        self._offered = {name: tool for name, tool in self._tools.items() if is_offered(name, allow, deny)}

    @property
    def names(self) -> frozenset[str]:
        """All there are, offered or not."""
        return frozenset(self._tools)

    @property
    def all(self) -> Mapping[str, Tool]:
        return self._tools

    @property
    def offered(self) -> Mapping[str, Tool]:
        """What models are told of and may call."""
        return self._offered
