"""The seam to tools: what a tool tells of itself, what it is given, and what it hands back.

A tool knows no run, session, store or event. The loop around it checks that arguments are an object, gives each call
its deadline, records it before and after, and cleans what it returns; a tool raises or returns and is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class ToolFailed(Exception):
    """The tool could not do what was asked. `str(error)` is what the model is told: short, and what to do instead."""


class ToolTimedOut(ToolFailed):
    """The tool has stopped by itself at a limit of its own; the text says so, and what had come by then."""


class ToolRefused(ToolFailed):
    """Raised by `prepare` alone: nothing was started, nothing was touched."""


class ArgumentsInvalid(ToolRefused):
    """The arguments are not what the tool takes; the text names the argument and what is allowed."""


class ToolBlocked(ToolRefused):
    """A policy of the operator does not allow this call."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text as the tool got it. The loop removes terminal control characters and secrets, and cuts it."""

    text: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image, as bytes of the type that `mime_type` claims."""

    mime_type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a call returned. `is_error`: the tool ran, and what it did failed (a command that exited with 1)."""

    content: tuple[Text | Image, ...]
    is_error: bool = False


class ToolContext(Protocol):
    """What one call is given. It is good until the call's `run` has returned or raised, and not after."""

    call_id: str
    """Unique over all calls of the service; the same in events and rows."""

    workspace: Path
    """The agent's folder, which exists. A tool touches no other files."""

    def update(self, text: str) -> None:
        """Show more of the output while the tool works. Never waits; what comes too fast is joined."""
        ...

    async def own_group(self, group: str) -> None:
        """Make durable which process group the call is about to use, before that does anything.

        `group` is what `process.kill_group` takes. A later attempt kills what is left of it. Raises what ends the call.
        """
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """A call that was checked and may start. `run` is awaited at most once; `timeout_s` is its deadline.

    `run` raises ToolFailed; whatever else it raises is told to the model as a failure without details. When it is
    cancelled it ends everything that it began before it lets the cancellation through.
    """

    run: Callable[[], Awaitable[ToolOutput]]
    timeout_s: float


class Tool(Protocol):
    """A tool that models may call. One object serves all calls, also at the same time."""

    @property
    def name(self) -> str:
        """1 to 64 characters of a-z, 0-9 and _."""
        ...

    @property
    def description(self) -> str:
        """For the model: what it does, its limits, when to use it."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON schema of the arguments, an object."""
        ...

    @property
    def sequential(self) -> bool:
        """Whether calls of one response run one after the other when this tool is among them."""
        ...

    async def prepare(self, args: dict[str, Any], context: ToolContext) -> Work:
        """Check arguments and policy; start nothing. Raises ArgumentsInvalid, ToolBlocked, ToolFailed."""
        ...
