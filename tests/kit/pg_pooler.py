"""A pooler in transaction mode before a PostgreSQL server: few connections to it stand for many clients."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from pathlib import Path
from typing import Any, Literal

Next = Literal["last", "longest"]
"""Which free connection is taken: the one given back last, or the one that has rested longest."""


class PgPooler:
    """Listens on loopback. With `settings` what a client asks for at its start stands on the server's connections."""

    def __init__(self, socket: Path, *, servers: int, take: Next = "last", settings: bool = True) -> None:
        self._upstream = str(socket / ".s.PGSQL.5432")
        self._left = servers
        self._take = take
        self._settings = settings
        self._free: list[_Server] = []
        self._freed = asyncio.Condition()
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> PgPooler:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self._free:
            server.out.close()

    def url(self, direct: str) -> str:
        """The address of a database through here; `direct` is its address at the socket."""
        assert self._listener is not None
        port = self._listener.sockets[0].getsockname()[1]
        return direct.partition("?")[0].replace("@/", f"@127.0.0.1:{port}/") + "?sslmode=disable"

    async def _serve(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            (size,) = struct.unpack("!I", await source.readexactly(4))
            server = await self._taken(await source.readexactly(size - 4))
            target.write(server.greeting)
            await self._given_back(server)
            while await self._transaction(source, target):
                pass
        target.close()

    async def _transaction(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> bool:
        """One of a client's, on one connection to the server. False when the client leaves."""
        message = await _message(source)
        if message[:1] == b"X":
            return False
        server = await self._taken(b"")
        state = b""
        while state != b"I":
            server.out.write(message)
            if message[:1] in b"QSH":  # the server answers; to the end of a step, or of what it has got so far
                state = await server.answer(target, flush=message[:1] == b"H")
            if state != b"I":
                message = await _message(source)
        await self._given_back(server)
        return True

    async def _taken(self, start: bytes) -> _Server:
        async with self._freed:
            if self._left and start:
                self._left -= 1
                return await _Server.open(self._upstream, start if self._settings else _bare(start))
            await self._freed.wait_for(lambda: bool(self._free))
            return self._free.pop(-1 if self._take == "last" else 0)

    async def _given_back(self, server: _Server) -> None:
        async with self._freed:
            self._free.append(server)
            self._freed.notify()


class _Server:
    """A connection to the server; `greeting` is what it says to one that begins."""

    def __init__(self, source: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        self._source = source
        self.out = out
        self.greeting = b""

    @classmethod
    async def open(cls, path: str, start: bytes) -> _Server:
        made = cls(*await asyncio.open_unix_connection(path))
        made.out.write(struct.pack("!I", len(start) + 4) + start)
        message = b""
        while message[:1] != b"Z":
            message = await _message(made._source)
            made.greeting += message
        return made

    async def answer(self, target: asyncio.StreamWriter, *, flush: bool) -> bytes:
        """Pass on an answer; the state of the transaction behind it, empty while a step is under way."""
        while True:
            message = await _message(self._source)
            target.write(message)
            if message[:1] == b"Z":
                return message[5:6]
            if flush and message[:1] in b"TnE":  # what a statement gives, or that it gives nothing, comes last
                return b""


def _bare(start: bytes) -> bytes:
    """The start of a connection with its user and its database alone."""
    words = start[4:].split(b"\0")
    named = dict(zip(words[::2], words[1::2], strict=False))
    kept = b"".join(name + b"\0" + named[name] + b"\0" for name in (b"user", b"database"))
    return start[:4] + kept + b"\0"


async def _message(source: asyncio.StreamReader) -> bytes:
    head = await source.readexactly(5)
    (size,) = struct.unpack("!I", head[1:])
    return head + await source.readexactly(size - 4)
