"""Events of the stream `tool`: what a model asked for, that it began, what it shows, how it ended.

Arguments and results come here as readers may see them: secrets masked, results cut. Arguments over the event limit
are cut here, and say so.
"""

from __future__ import annotations

from typing import Any

import orjson

from app.domain.event import BYTES_A_CHARACTER_MAX, ENVELOPE_BYTES, Event, Told, encode
from app.domain.message import ToolCallPart
from app.domain.tool_call import CallResult


def arguments(call: ToolCallPart) -> Any:
    """The value that the model wrote, or the text where it is no JSON."""
    try:
        return orjson.loads(call.args)
    except orjson.JSONDecodeError:
        return call.args


def requested(message_id: str, call: ToolCallPart, args: Any, size_max: int) -> Told:
    """`args`: as readers may see them."""
    return _with_args("requested", message_id, call, args, size_max)


def started(message_id: str, call: ToolCallPart, args: Any, size_max: int) -> Told:
    """`args`: as readers may see them."""
    return _with_args("start", message_id, call, args, size_max)


def updated(message_id: str, call: ToolCallPart, text: str) -> Told:
    """`text`: what came since the last update, as readers may see it."""
    return "tool", encode({**_head("update", message_id, call), "result": _result(text, truncated=False)}), False


def ended(message_id: str, call: ToolCallPart, result: CallResult, text: str, *, truncated: bool) -> Told:
    """`text`: the result as readers may see it; `truncated`: it was cut for them, or is kept cut."""
    data = {
        **_head("end", message_id, call),
        "outcome": result.ending.outcome,
        "isError": result.is_error,
        "skipped": result.skipped,
        "durationMs": result.duration_ms,
        "resultMessageId": result.message_id,
        "result": _result(text, truncated=truncated),
    }
    return "tool", encode(data), False


def without_details(event: Event) -> Event:
    """The event as `?tools=summary` gets it: no arguments, no result."""
    kept = {name: value for name, value in orjson.loads(event.payload).items() if name not in _DETAILS}
    return Event(
        event.run_id,
        event.seq,
        event.stream,
        event.ts,
        encode(kept),
        first_seq=event.first_seq,
        not_kept_from=event.not_kept_from,
        terminal=event.terminal,
    )


_DETAILS = frozenset({"args", "argsTruncated", "result"})


def _head(phase: str, message_id: str, call: ToolCallPart) -> dict[str, Any]:
    return {"phase": phase, "toolCallId": call.tool_call_id, "messageId": message_id, "name": call.name[:NAME_CHARS]}


NAME_CHARS = 128
"""How much of a name that a model made up is shown."""


def _result(text: str, *, truncated: bool) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "truncated": truncated}


def _with_args(phase: str, message_id: str, call: ToolCallPart, args: Any, size_max: int) -> Told:
    data = {**_head(phase, message_id, call), "args": args}
    payload = encode(data)
    if len(payload) > size_max:
        room = max(1, (size_max - ENVELOPE_BYTES) // BYTES_A_CHARACTER_MAX)
        text = args if isinstance(args, str) else orjson.dumps(args).decode()
        payload = encode({**data, "args": text[:room], "argsTruncated": True})
    return "tool", payload, False
