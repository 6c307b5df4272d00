"""Chat-completion streams as compatible servers send them, made into the stream that the vendor's SDK expects.

What came in one go is joined, calls are numbered by what they are and not by their index, reasoning in tags moves to a
field, and the end is told only when the server told it: by a finish reason or by the end mark.
"""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

from app.clock import Ids
from app.providers.errors import bad_response, from_payload
from app.providers.sse import Event
from app.providers.think_tags import ThinkTags
from app.providers.tool_pieces import Piece, ToolPieces

FACTS_FIELD: Final = "laneway"
"""Field of the last chunk with what the SDK's types have no room for: raw usage and the server's own finish reason."""

TAGGED_THINKING_FIELD: Final = "tagged_thinking"
"""Delta field of reasoning that stood in tags; unlike a server's own field it never goes back to the server."""

_REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
_FINISH: Final = {
    "stop": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "refusal": "content_filter",
}
"""Finish reasons in lower case; one that is not here is a kind of `stop`."""


class ChatWire:
    """The normalizer of one stream: events in, bytes of a clean stream out."""

    def __init__(self, provider: str, ids: Ids) -> None:
        self.is_complete = False
        """The end mark came: nothing that follows matters."""
        self.is_finishing = False
        """The finish reason came: at most usage and the end mark follow."""
        self._provider = provider
        self._pieces = ToolPieces(provider, ids)
        self._tags = ThinkTags()
        self._out: list[bytes] = []
        self._field = ""
        self._texts: list[str] = []
        self._call: Piece | None = None
        self._finish_reason: str | None = None
        self._usage: dict[str, Any] | None = None
        self._base: dict[str, Any] = {}
        self._head = b""

    def event(self, event: Event) -> None:
        """Take one event. Raises ProviderError when it is an error or makes no sense."""
        value = event.value
        if value is None:
            self.is_complete = True
            return
        self._check_error(event.name, value)
        if not self._head:
            self._open(value)
        usage = value.get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        choices = value.get("choices")
        if isinstance(choices, list):
            for choice in choices:
                if isinstance(choice, dict) and not choice.get("index"):
                    self._choice(choice)

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
        thinking, text = self._tags.rest()
        self._say(TAGGED_THINKING_FIELD, thinking)
        self._say("content", text)
        if not self._head:
            self._open({})
        reason = self._finish_reason
        known = _FINISH.get((reason or "stop").lower(), "stop")
        choice = {"index": 0, "delta": {}, "finish_reason": known}
        facts = {"usage": self._usage, "finishReason": reason}
        last = _dumps({**self._base, "choices": [choice], FACTS_FIELD: facts})
        return self.take() + b"data: " + last + b"\n\ndata: [DONE]\n\n"

    def _check_error(self, name: bytes, value: dict[str, Any]) -> None:
        error = value.get("error")
        if not error and (name == b"error" or value.get("object") == "error"):
            error = value
        if error:
            raise from_payload(self._provider, error)

    def _open(self, value: dict[str, Any]) -> None:
        """Keep what every chunk repeats. Servers leave parts of it out, the SDK wants it whole."""
        created = value.get("created")
        self._base = {
            "id": _text(value.get("id")),
            "object": "chat.completion.chunk",
            "created": created if isinstance(created, int) else 0,
            "model": _text(value.get("model")),
        }
        self._head = b"data: " + _dumps(self._base)[:-1] + b',"choices":[{"index":0,"finish_reason":null,"delta":'

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        if isinstance(delta, dict):
            for name in _REASONING_FIELDS:
                reasoning = delta.get(name)
                if reasoning and isinstance(reasoning, str):
                    self._say(name, reasoning)
                    break
            content = delta.get("content")
            if content:
                self._content(content)
            refusal = delta.get("refusal")
            if refusal and isinstance(refusal, str):
                self._say("content", refusal)
                self._finish_reason = "refusal"
            calls = delta.get("tool_calls")
            if isinstance(calls, list):
                for call in calls:
                    if isinstance(call, dict):
                        self._piece(self._pieces.add(call))
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str):
            if reason.lower() == "error":
                raise from_payload(self._provider, {})
            self.is_finishing = True
            self._finish_reason = self._finish_reason or reason

    def _content(self, content: object) -> None:
        """Text, which some servers send as a list of parts."""
        if isinstance(content, list):
            content = "".join(_part_text(part) for part in content)
        if not isinstance(content, str):
            return
        if self._tags.is_done:
            self._say("content", content)
            return
        thinking, text = self._tags.feed(content)
        self._say(TAGGED_THINKING_FIELD, thinking)
        self._say("content", text)

    def _say(self, field: str, text: str) -> None:
        if not text:
            return
        if self._field != field:
            self._flush()
            self._field = field
        self._texts.append(text)

    def _piece(self, piece: Piece) -> None:
        """A piece that only adds arguments to the call at hand is joined with those before it."""
        if not (piece.begins or piece.name or piece.args):
            return
        if piece.begins or piece.name or self._call is None or self._call.call is not piece.call:
            self._flush()
            self._call = piece
            self._field = "tool_calls"
        if piece.args:
            self._texts.append(piece.args)

    def _flush(self) -> None:
        """Write the joined delta, if there is one."""
        if not self._field:
            return
        text = "".join(self._texts)
        self._texts.clear()
        delta: dict[str, Any]
        if self._call is None:
            delta = {self._field: text}
        else:
            call, function = self._call.call, {"arguments": text}
            delta = {"index": call.number, "function": function}
            if self._call.name:
                function["name"] = self._call.name
            if self._call.begins:
                delta |= {"id": call.call_id, "type": "function"}
            delta = {"tool_calls": [delta]}
        self._field, self._call = "", None
        self._out.append(self._head + _dumps(delta) + b"}]}\n\n")


def _part_text(part: object) -> str:
    if isinstance(part, dict):
        part = part.get("text") if part.get("type") in (None, "text") else None
    return _text(part)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dumps(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        # Halves of a character that came apart: they meet again further up.
        return json.dumps(value).encode()
