"""A plain JSON completion from the chunks of a scripted reply, for requests that did not ask for a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from tests.kit.steps import CHUNK_BASE, usage_value


def completion_of(chunks: Sequence[bytes]) -> dict[str, Any]:
    """One completion with the joined text, the calls, the finish reason and the usage of the chunks."""
    content, reason, usage = "", "stop", usage_value(10, 5)
    calls: dict[int, dict[str, Any]] = {}
    for value in _values(b"".join(chunks)):
        usage = value.get("usage") or usage
        for choice in value.get("choices") or []:
            delta = choice.get("delta") or {}
            content += delta.get("content") or ""
            reason = choice.get("finish_reason") or reason
            for piece in delta.get("tool_calls") or []:
                _join(calls, piece)
    message: dict[str, Any] = {"role": "assistant", "content": content or None}
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    choices = [{"index": 0, "message": message, "finish_reason": reason}]
    return {**CHUNK_BASE, "object": "chat.completion", "choices": choices, "usage": usage}


def _values(body: bytes) -> list[dict[str, Any]]:
    lines = (line.removeprefix(b"data: ") for line in body.split(b"\n") if line.startswith(b"data: {"))
    return [orjson.loads(line) for line in lines]


def _join(calls: dict[int, dict[str, Any]], piece: dict[str, Any]) -> None:
    call = calls.setdefault(
        piece.get("index", 0), {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
    )
    call["id"] = piece.get("id") or call["id"]
    function = piece.get("function") or {}
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""
