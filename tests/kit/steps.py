"""What a scripted model answer is made of: steps, and the functions that make them.

A reply is a list of steps, performed in order. A `Writes` step goes out as one HTTP chunk and one socket
write for each of its byte strings, so that a test owns every border. Nothing here touches a socket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import orjson

Framing = Literal["chunked", "close", "length"]


class Step:
    """One thing that a reply does."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Writes(Step):
    """Byte strings, each one chunk and one write; `delay_s` lies between two of them, not before the first."""

    chunks: Sequence[bytes]
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Unframed(Step):
    """Bytes that go out as they are, past the body's framing, to break HTTP itself."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pause(Step):
    """Silence with the connection open. As the first step it delays the headers too."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold(Step):
    """Silence until the test releases the name (or has already released it)."""

    name: str


@dataclass(frozen=True, slots=True)
class Reset(Step):
    """A TCP RST, after all that was written has reached the peer."""


@dataclass(frozen=True, slots=True)
class Cut(Step):
    """The connection is closed (FIN) without the end of the body."""


@dataclass(frozen=True, slots=True)
class End(Step):
    """The clean end of the body; what follows in the reply is not performed. Also implied at the end of a reply."""


@dataclass(frozen=True, slots=True)
class Head(Step):
    """Status line and headers, sent at once. Without this step a plain SSE head goes out with the first write."""

    status: int = 200
    fields: Mapping[str, str] = field(default_factory=dict)
    framing: Framing = "chunked"


Reply = Sequence[Step]

CHUNK_BASE: dict[str, Any] = {
    "id": "chatcmpl-scripted",
    "object": "chat.completion.chunk",
    "created": 1_700_000_000,
    "model": "scripted",
}


def frame(value: Any) -> bytes:
    """One SSE block with a JSON value as its data."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def chunk_frame(delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
    """One completion chunk with one choice, as an SSE block."""
    choice = {"index": 0, "delta": dict(delta), "finish_reason": finish_reason}
    return frame({**CHUNK_BASE, "choices": [choice]})


def raw(*pieces: bytes, delay_s: float = 0.0) -> Writes:
    """Exactly these bytes, a chunk and a write for each piece."""
    return Writes(pieces, delay_s)


def unframed(data: bytes) -> Unframed:
    """Bytes outside the body's framing."""
    return Unframed(data)


def data(*values: Any, delay_s: float = 0.0) -> Writes:
    """Any JSON values, an SSE block each."""
    return Writes([frame(value) for value in values], delay_s)


def delta(fields: Mapping[str, Any], finish_reason: str | None = None) -> Writes:
    """One chunk with any delta fields."""
    return Writes([chunk_frame(fields, finish_reason)])


def role() -> Writes:
    """The opening chunk: the role and an empty content."""
    return delta({"role": "assistant", "content": ""})


def text(*deltas: str, delay_s: float = 0.0) -> Writes:
    """Text, one chunk a delta."""
    return Writes([chunk_frame({"content": piece}) for piece in deltas], delay_s)


def thinking(*deltas: str, delay_s: float = 0.0, name: str = "reasoning_content") -> Writes:
    """Reasoning, one chunk a delta, under the field name that compatible servers use."""
    return Writes([chunk_frame({name: piece}) for piece in deltas], delay_s)


def tool_call(  # noqa: PLR0913
    call_id: str,
    name: str,
    args: str | Mapping[str, Any] = "{}",
    index: int | None = 0,
    *,
    pieces: int = 1,
    delay_s: float = 0.0,
) -> Writes:
    """One call. `pieces` above 1: a head without arguments, then the arguments in so many chunks, the id only once.

    `args` as text goes out as it is, broken or not. `index=None` leaves the field out.
    """
    written = args if isinstance(args, str) else orjson.dumps(dict(args)).decode()
    if pieces == 1:
        return Writes([_call_frame(index, call_id, name, written)])
    head = _call_frame(index, call_id, name, "")
    return Writes([head, *(_call_frame(index, None, None, part) for part in cut_text(written, pieces))], delay_s)


def call_piece(
    index: int | None = 0, *, call_id: str | None = None, name: str | None = None, args: str | None = None
) -> Writes:
    """One piece of a call with exactly the fields given: for servers that number and name their pieces oddly."""
    return Writes([_call_frame(index, call_id, name, args)])


def usage(prompt: int = 10, completion: int = 5, *, cached: int = 0, reasoning: int = 0) -> Writes:
    """The usage-only chunk: no choices."""
    return data({**CHUNK_BASE, "choices": [], "usage": usage_value(prompt, completion, cached, reasoning)})


def usage_value(prompt: int, completion: int, cached: int = 0, reasoning: int = 0) -> dict[str, Any]:
    """Usage as the wire has it."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def finish(reason: str = "stop") -> Writes:
    """The chunk with the finish reason."""
    return delta({}, reason)


def done() -> Writes:
    """The end mark."""
    return Writes([b"data: [DONE]\n\n"])


def comment(words: str = "keep-alive") -> Writes:
    """An SSE comment, which carries no content."""
    return Writes([b": " + words.encode() + b"\n\n"])


def pause(seconds: float) -> Pause:
    """Silence."""
    return Pause(seconds)


def stay_open(seconds: float) -> Pause:
    """Keep the connection open behind what was sent, in silence."""
    return Pause(seconds)


def delay_headers(seconds: float) -> Pause:
    """As the first step: not a byte for so long."""
    return Pause(seconds)


def hold(name: str) -> Hold:
    """Wait here until `server.release(name)`."""
    return Hold(name)


def reset() -> Reset:
    """Reset the connection (RST) here."""
    return Reset()


def cut() -> Cut:
    """Close the connection (FIN) inside the body."""
    return Cut()


def end() -> End:
    """End the body cleanly here."""
    return End()


def headers(status: int = 200, fields: Mapping[str, str] | None = None, *, framing: Framing = "chunked") -> Head:
    """Status and headers now. `framing="close"`: the body ends with the connection."""
    return Head(status, fields or {}, framing)


def error(
    status: int,
    message: str = "scripted failure",
    *,
    kind: str = "server_error",
    code: str | None = None,
    fields: Mapping[str, str] | None = None,
) -> list[Step]:
    """A whole reply: a JSON error as providers send it. `fields` are more headers (`{"retry-after": "2"}`)."""
    body = orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
    named = {"content-type": "application/json", "content-length": str(len(body)), **(fields or {})}
    return [Head(status, named, "length"), Writes([body])]


def recut(*steps: Writes, size: int = 1, delay_s: float = 0.0) -> Writes:
    """The bytes of these steps, cut anew every `size` bytes, through the middle of characters, lines and blocks."""
    joined = b"".join(chunk for step in steps for chunk in step.chunks)
    return Writes([joined[at : at + size] for at in range(0, len(joined), size)], delay_s)


def cut_text(whole: str, pieces: int) -> list[str]:
    """The text in at most so many nearly equal pieces, none of them empty."""
    count = max(1, min(pieces, len(whole)))
    borders = [len(whole) * at // count for at in range(count + 1)]
    return [whole[low:high] for low, high in pairwise(borders) if high > low]


def reply_text(words: str, deltas: int = 8, delay_s: float = 0.0) -> list[Step]:
    """A whole good reply: the role, the text in so many deltas, the finish reason, usage, the end mark."""
    pieces = cut_text(words, deltas)
    return [role(), text(*pieces, delay_s=delay_s), finish(), usage(10, max(1, len(pieces))), done()]


def reply_calls(*calls: tuple[str, str, str | Mapping[str, Any]], words: str = "") -> list[Step]:
    """A whole good reply that asks for tools: `(id, name, arguments)` each, after some text if there is any."""
    asked = [tool_call(call_id, name, args, index) for index, (call_id, name, args) in enumerate(calls)]
    said = [text(words)] if words else []
    return [role(), *said, *asked, finish("tool_calls"), usage(), done()]


def _call_frame(index: int | None, call_id: str | None, name: str | None, args: str | None) -> bytes:
    call: dict[str, Any] = {} if index is None else {"index": index}
    if call_id is not None:
        call |= {"id": call_id, "type": "function"}
    function = {key: value for key, value in (("name", name), ("arguments", args)) if value is not None}
    if function:
        call["function"] = function
    return chunk_frame({"tool_calls": [call]})
