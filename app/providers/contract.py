"""The seam to models: what the loop asks for and what a provider yields.

A provider turns one request into one stream of parts, or raises ProviderError. It retries nothing,
stores nothing and knows no run. Implementations: `stream` (every real vendor), `scripted`, `demo`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from app.domain.message import Message, StopReason, ThinkingLevel, Usage

ProviderErrorCode = Literal[
    "provider-error",
    "provider-auth",
    "provider-rate-limited",
    "provider-overloaded",
    "provider-unreachable",
    "provider-timeout",
    "provider-refused",
    "provider-bad-response",
    "model-not-found",
    "context-overflow",
]
"""Closed list; each is also a run error code."""


class ProviderError(Exception):
    """A model call failed. `str(error)` is short text for people, without secrets and without the provider's raw body.

    `retryable`: the same request may succeed later. `retry_after_s`: the provider's own floor, if it gave one.
    `status`: the HTTP status it answered, if it answered.
    """

    def __init__(
        self,
        code: ProviderErrorCode,
        message: str,
        *,
        retryable: bool = False,
        retry_after_s: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.status = status


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it; `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One model call. `messages` alternates as stored; the provider shapes it for its vendor."""

    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    thinking: ThinkingLevel | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text for people. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """More reasoning. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDetail:
    """The provider's opaque detail of the thinking that came so far (a signature), to be sent back as it is."""

    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ArgsDelta:
    """More of a call's arguments while the model writes them. Counts as content for the idle watchdog.

    `text` may not be empty.
    """

    tool_call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One complete call, yielded after the model has finished it.

    `args` is text exactly as the model wrote it ("{}" when it wrote nothing).
    """

    tool_call_id: str
    name: str
    args: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The last part of every stream that did not raise."""

    stop_reason: StopReason
    usage: Usage
    model: str = ""
    detail: dict[str, Any] = field(default_factory=dict)


StreamPart = TextDelta | ThinkingDelta | ThinkingDetail | ArgsDelta | ToolCall | Finished


class ModelProvider(Protocol):
    """One configured model."""

    name: str
    """`provider:model` as configured; shown on the wire."""

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamPart]:
        """Call the model once.

        An async generator: closing it (also by cancellation) closes the connection to the provider at once.
        Yields parts as they arrive, joining only what has already arrived; the last one is Finished.
        Raises ProviderError; nothing else but cancellation.
        """
        ...

    async def close(self) -> None:
        """Release connections. Called once, at the end of the process."""
