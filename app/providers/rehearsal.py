"""One call of each kind of model that never leaves the process: what the first real call would build is built by it."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Final

import httpx2

from app.clock import SystemClock, UuidIds
from app.domain.message import Message, TextPart
from app.providers.client import over
from app.providers.contract import ModelRequest
from app.providers.endpoint import Endpoint
from app.providers.stream import LayeredProvider
from app.settings import Provider, ProviderKind

_REPLIES: Final[dict[ProviderKind, bytes]] = {
    "openai": b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
    "anthropic": (
        b'data: {"type":"message_start","message":{"id":"x","type":"message","role":"assistant","content":[],'
        b'"model":"x","stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}}\n\n'
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}\n\n'
        b'data: {"type":"content_block_stop","index":0}\n\n'
        b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}\n\n'
        b'data: {"type":"message_stop"}\n\n'
    ),
}


def rehearse(kind: ProviderKind, vendor: ModuleType) -> None:
    """Call a model of the kind once, to the end. Has an event loop of its own; not for a thread that has one."""
    asyncio.run(_call(kind, vendor))


async def _call(kind: ProviderKind, vendor: ModuleType) -> None:
    endpoint = Endpoint.of("rehearsal", Provider(kind=kind))
    clock = SystemClock()
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=_REPLIES[kind]))
    async with over(transport, endpoint, vendor.dialect(endpoint, UuidIds()), clock) as http:
        provider = LayeredProvider("rehearsal:x", vendor.layered(endpoint, "x", http), clock)
        request = ModelRequest("x", (Message("user", "x", (TextPart("x"),)),))
        async for _ in provider.stream(request):
            pass
