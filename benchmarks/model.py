"""A scripted chat-completions server, fast enough to stay out of the measurement; runs as a process of its own.

What to answer stands in the request: the last `#model:SPEC#` of the body, where SPEC is made of tokens with dashes
between. `d200`: so many deltas, in one write. `apart`: each delta in a write of its own. `mute`: no answer at all.
`call8`: so many tool calls first, side by side; what follows their results is answered as the other tokens say.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
from functools import lru_cache
from typing import Any, cast

import httptools
import orjson
import uvloop

DIRECTIVE = re.compile(rb"#model:([a-z0-9-]+)#")
DELTA_CHARS = 4
"""Characters of each delta: a client that gets several joined still knows how many there were."""

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
_END = b"0\r\n\r\n"


def words(count: int) -> list[str]:
    """Texts of DELTA_CHARS characters; neighbours differ, because some clients stop at a stream that repeats itself."""
    return [f"{_ALPHABET[n // 26 % 26]}{_ALPHABET[n % 26]}{_ALPHABET[(n + 7) % 26]} " for n in range(count)]


def _chunk(event: dict[str, Any] | None) -> bytes:
    data = b"data: " + (b"[DONE]" if event is None else orjson.dumps(event)) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


@lru_cache(maxsize=64)
def answer(deltas: int) -> tuple[bytes, ...]:
    """The answer's pieces, ready for the wire: head, one for each delta, end."""
    base = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "bench"}

    def choice(delta: dict[str, str], finish: str | None = None) -> bytes:
        return _chunk({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    usage = {"prompt_tokens": 10, "completion_tokens": deltas, "total_tokens": 10 + deltas}
    head = _HEAD + choice({"role": "assistant", "content": ""})
    end = choice({}, "stop") + _chunk({**base, "choices": [], "usage": usage}) + _chunk(None) + _END
    return (head, *(choice({"content": text}) for text in words(deltas)), end)


@lru_cache(maxsize=64)
def calls(count: int) -> bytes:
    """An answer that asks for the same harmless tool so many times."""
    base = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "bench"}
    asked = [
        {"index": n, "id": f"call_{n}", "type": "function", "function": {"name": "list", "arguments": "{}"}}
        for n in range(count)
    ]
    delta = {"role": "assistant", "content": None, "tool_calls": asked}
    said = _chunk({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    over = _chunk({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    return _HEAD + said + over + _chunk(None) + _END


class Connection(asyncio.Protocol):
    """One keep-alive connection. A request is answered when its body is whole."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._url = b""
        self._writing: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _: Exception | None) -> None:
        for task in self._writing:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_begin(self) -> None:
        self._body.clear()
        self._url = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if not self._url.endswith(b"/chat/completions"):
            self._transport.write(_NOT_FOUND)
            return
        body = b"".join(self._body)
        found = DIRECTIVE.findall(body)
        spec = found[-1].decode().split("-") if found else ["d8"]
        if "mute" in spec:
            return
        asked = _number(spec, "call")
        if asked and orjson.loads(body)["messages"][-1]["role"] != "tool":
            self._transport.write(calls(asked))
            return
        pieces = answer(_number(spec, "d") or 8)
        if "apart" in spec:
            task = asyncio.get_running_loop().create_task(self._write_apart(pieces))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
        else:
            self._transport.write(b"".join(pieces))

    async def _write_apart(self, pieces: tuple[bytes, ...]) -> None:
        for piece in pieces:
            self._transport.write(piece)
            await asyncio.sleep(0)


def _number(spec: list[str], token: str) -> int:
    """The number behind a token, 0 without it."""
    return next((int(one.removeprefix(token)) for one in spec if re.fullmatch(rf"{token}\d+", one)), 0)


async def serve(seconds_max: float) -> None:
    """Listen on a free loopback port, say which, and end after `seconds_max` at the latest."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=4096)
    print(f"ready on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await server.serve_forever()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds-max", type=float, default=1800)
    uvloop.run(serve(options.parse_args().seconds_max))
