"""Message streams of the Anthropic API, checked and joined before the vendor's SDK reads them.

The events are passed on as they came, except that deltas of one block that arrived together become one.
"""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

from app.providers.errors import bad_response, from_payload
from app.providers.sse import Event

_TEXT_KEYS: Final = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
"""Where each kind of delta that can be joined has its text."""


class MessagesWire:
    """The normalizer of one stream: events in, bytes of a clean stream out."""

    def __init__(self, provider: str) -> None:
        self.is_complete = False
        """The last event came: nothing that follows matters."""
        self.is_finishing = False
        """The stop reason came: only the last event follows."""
        self._provider = provider
        self._out: list[bytes] = []
        self._block: tuple[Any, str] | None = None
        self._texts: list[str] = []

    def event(self, event: Event) -> None:
        """Take one event. Raises ProviderError when it is an error."""
        value = event.value
        if value is None:
            return
        kind = value.get("type")
        if kind == "error" or event.name == b"error":
            raise from_payload(self._provider, value.get("error") or value)
        if kind == "content_block_delta":
            self._delta(value, event.raw)
            return
        self._flush()
        if kind == "message_stop":
            self.is_complete = True
        elif kind == "message_delta":
            delta = value.get("delta")
            self.is_finishing = self.is_finishing or bool(isinstance(delta, dict) and delta.get("stop_reason"))
        if isinstance(kind, str) and kind != "ping":
            self._write(kind, event.raw)

    def take(self) -> bytes:
        """The clean bytes of everything since the last time."""
        self._flush()
        taken = b"".join(self._out)
        self._out.clear()
        return taken

    def close(self) -> bytes:
        """The last bytes. Raises ProviderError when the server never said that the answer is complete."""
        if not (self.is_complete or self.is_finishing):
            raise bad_response(self._provider, "ended its answer without saying that it is complete")
        return self.take()

    def _delta(self, value: dict[str, Any], raw: bytes) -> None:
        delta = value.get("delta")
        kind = delta.get("type") if isinstance(delta, dict) else None
        key = _TEXT_KEYS.get(kind) if isinstance(kind, str) else None
        if key is None or kind is None or not isinstance(delta, dict) or not isinstance(delta.get(key), str):
            self._flush()
            self._write("content_block_delta", raw)
            return
        block = (value.get("index"), kind)
        if self._block != block:
            self._flush()
            self._block = block
        self._texts.append(delta[key])

    def _flush(self) -> None:
        """Write the joined delta, if there is one."""
        if self._block is None:
            return
        index, kind = self._block
        delta = {"type": kind, _TEXT_KEYS[kind]: "".join(self._texts)}
        self._block = None
        self._texts.clear()
        self._write("content_block_delta", _dumps({"type": "content_block_delta", "index": index, "delta": delta}))

    def _write(self, name: str, data: bytes) -> None:
        self._out.append(b"event: " + name.encode() + b"\ndata: " + data.replace(b"\n", b"\ndata: ") + b"\n\n")


def _dumps(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()
