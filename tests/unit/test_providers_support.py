"""Shared by the provider tests, holds none itself: providers on a local server, one call collected, a byte server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.domain.message import Message, Part, TextPart
from app.providers.contract import (
    ArgsDelta,
    Finished,
    ModelProvider,
    ModelRequest,
    ProviderError,
    StreamPart,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolSpec,
)
from app.providers.resolve import Providers
from app.settings import Settings
from tests.kit.model_server import ModelServer
from tests.kit.steps import Step

KEY = "sk-secret-0123456789"
TOOL = ToolSpec("weather", "Tells the weather.", {"type": "object", "properties": {"city": {"type": "string"}}})


def settings_for(base_url: str, **fields: Any) -> Settings:
    """Settings with one provider, `local`."""
    provider = {"kind": "openai", "base_url": base_url, "api_key": KEY, "timeout_seconds": 20, **fields}
    return Settings.model_validate({"state_dir": Path("unused"), "providers": {"local": provider}})


@asynccontextmanager
async def provider_at(base_url: str, model: str = "local:test-model", **fields: Any) -> AsyncIterator[ModelProvider]:
    """The provider of one model at the address; closed afterwards."""
    providers = Providers(settings_for(base_url, **fields))
    try:
        yield await providers.resolve(model)
    finally:
        await providers.close()


def user(text: str, number: int = 1) -> Message:
    return Message("user", f"u{number}", (TextPart(text),))


def assistant(*parts: Part, number: int = 1) -> Message:
    return Message("assistant", f"a{number}", parts)


def asking(text: str = "hello", *before: Message, **fields: Any) -> ModelRequest:
    """A request that ends with the user's text."""
    return ModelRequest(fields.pop("system", ""), (*before, user(text, 99)), **fields)


@dataclass(slots=True)
class Told:
    """What one call told."""

    parts: list[StreamPart] = field(default_factory=list)
    error: ProviderError | None = None
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextDelta))

    @property
    def thinking(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, ThinkingDelta))

    @property
    def calls(self) -> list[ToolCall]:
        return [part for part in self.parts if isinstance(part, ToolCall)]

    @property
    def finished(self) -> Finished:
        assert self.error is None, repr(self.error)
        last = self.parts[-1]
        assert isinstance(last, Finished)
        return last

    def args_of(self, call_id: str) -> str:
        """The argument deltas of one call, joined."""
        return "".join(p.text for p in self.parts if isinstance(p, ArgsDelta) and p.tool_call_id == call_id)

    def failed(self, code: str) -> ProviderError:
        assert self.error is not None, f"no error, but {self.parts}"
        assert self.error.code == code, f"{self.error.code}: {self.error}"
        assert not any(isinstance(part, Finished) for part in self.parts)
        assert KEY not in str(self.error)
        return self.error


async def tell(provider: ModelProvider, request: ModelRequest | None = None) -> Told:
    """Call once and keep everything."""
    told, begun = Told(), time.monotonic()
    try:
        async for part in provider.stream(request or asking()):
            told.parts.append(part)
    except ProviderError as error:
        told.error = error
    told.seconds = time.monotonic() - begun
    return told


async def told_by(model: ModelServer, *steps: Step, **fields: Any) -> Told:
    """Script one reply and ask for it, with a tool on offer."""
    model.script(list(steps))
    async with provider_at(model.base_url) as provider:
        return await tell(provider, asking(tools=(TOOL,), **fields))


@dataclass(slots=True)
class ByteServer:
    """Answers every request with the same bytes and notes what it got and when its client went."""

    pieces: Sequence[bytes]
    stays_open_s: float = 0.0
    requests: list[bytes] = field(default_factory=list)
    gone_at: float | None = None
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def running(self, tls: Any = None) -> AsyncIterator[ByteServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
            )
            self.requests.append(head + await reader.readexactly(length))
            for piece in self.pieces:
                writer.write(piece)
                await writer.drain()
            if self.stays_open_s:
                async with asyncio.timeout(self.stays_open_s):
                    if not await reader.read(1):
                        self.gone_at = time.monotonic()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            self.gone_at = self.gone_at or time.monotonic()
        finally:
            writer.close()


def sse_head(*fields: bytes) -> bytes:
    """The head of an answer whose body ends with the connection."""
    return b"\r\n".join((b"HTTP/1.1 200 OK", b"content-type: text/event-stream", *fields, b"", b""))
