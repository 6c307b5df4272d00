"""A connection as uvicorn serves it, which an answer may also have cut at once, by an extension of its ASGI scope."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api.sse import CUT

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER without a wait: the kernel drops what it still had to send and tells the peer by a reset."""


class CuttableConnection(HttpToolsProtocol):
    """uvicorn itself can only close a connection, and that waits until the peer has taken all that was written."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_lost = False
        self._cutting: asyncio.Future[None] | None = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CUT: {"now": self._cut}}

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._is_lost = True
        if self._cutting is not None and not self._cutting.done():
            self._cutting.set_result(None)

    async def _cut(self) -> None:
        """Returns when it is gone."""
        if not self.transport.is_closing():
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._cutting = asyncio.get_running_loop().create_future()
        self.transport.abort()
        if not self._is_lost:
            await self._cutting
