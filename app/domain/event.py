"""Events of a run: the envelope, its bytes on the wire, and the data of each kind.

An Event is made once, encoded once, stored once and told to any number of readers. `payload` is the JSON of
`data` alone; the envelope is put around it when it is framed.
"""

from __future__ import annotations

from typing import Any

import orjson

from app.clock import rfc3339
from app.domain.outcome import Outcome

STREAMS = ("lifecycle", "assistant", "thinking", "tool")
"""Streams that carry numbered events in this build."""

LATER_STREAMS = ("compaction", "approval", "chat")
"""Streams of the contract that this build does not have yet."""


class Event:
    """One numbered event. `not_kept_from`: the numbers from there up to `first_seq - 1` were given out but not kept."""

    __slots__ = ("_body", "first_seq", "not_kept_from", "payload", "run_id", "seq", "stream", "terminal", "ts")

    def __init__(  # noqa: PLR0913 - the columns of a row
        self,
        run_id: str,
        seq: int,
        stream: str,
        ts: int,
        payload: bytes,
        *,
        first_seq: int | None = None,
        not_kept_from: int | None = None,
        terminal: bool = False,
    ) -> None:
        self.run_id = run_id
        self.seq = seq
        self.first_seq = seq if first_seq is None else first_seq
        self.not_kept_from = not_kept_from
        self.stream = stream
        self.ts = ts
        self.payload = payload
        self.terminal = terminal
        self._body: bytes | None = None

    def follows(self, cursor: int) -> bool:
        """Whether a reader at `cursor` may get this event next (rule RD-2)."""
        start = self.first_seq if self.not_kept_from is None else self.not_kept_from
        return start <= cursor + 1 <= self.seq

    def body(self) -> bytes:
        """The envelope as JSON bytes."""
        if self._body is None:
            extra = b""
            if self.first_seq != self.seq:
                extra += b',"firstSeq":%d' % self.first_seq
            if self.not_kept_from is not None:
                extra += b',"notKept":{"fromSeq":%d,"toSeq":%d}' % (self.not_kept_from, self.first_seq - 1)
            self._body = b'{"runId":"%b","seq":%d%b,"stream":"%b","ts":"%b","data":%b}' % (
                self.run_id.encode(),
                self.seq,
                extra,
                self.stream.encode(),
                rfc3339(self.ts).encode(),
                self.payload,
            )
        return self._body

    def frame(self, *, named: bool = True) -> bytes:
        """The SSE block. `named=False` leaves out the event name (`?format=message`)."""
        if named:
            return b"id: %d\nevent: %b\ndata: %b\n\n" % (self.seq, self.stream.encode(), self.body())
        return b"id: %d\ndata: %b\n\n" % (self.seq, self.body())


def control_frame(  # noqa: PLR0913
    name: str,
    data: dict[str, Any],
    ts: int,
    *,
    run_id: str | None = None,
    event_id: int | None = None,
    retry_ms: int | None = None,
    named: bool = True,
) -> bytes:
    """An SSE block that is no numbered event: ready, accepted, heartbeat, snapshot, gap, shutdown, problem, done."""
    envelope: dict[str, Any] = {"runId": run_id} if run_id is not None else {}
    envelope |= {"stream": name, "ts": rfc3339(ts), "data": data}
    lines = []
    if retry_ms is not None:
        lines.append(b"retry: %d" % retry_ms)
    if event_id is not None:
        lines.append(b"id: %d" % event_id)
    if named:
        lines.append(b"event: " + name.encode())
    lines.append(b"data: " + orjson.dumps(envelope))
    return b"\n".join(lines) + b"\n\n"


def encode(data: dict[str, Any]) -> bytes:
    """The payload bytes of an event's data."""
    return orjson.dumps(data)


BYTES_A_CHARACTER_MAX = 6
"""Bytes of one code point in JSON, at most (a control character, escaped)."""

ENVELOPE_BYTES = 768
"""What the fields beside a text take in an event's data."""

Told = tuple[str, bytes, bool]
"""An event before it has a number: stream, payload, terminal."""


def queued(message: dict[str, Any], receipt: dict[str, Any], size_max: int) -> Told:
    """`input` is the user's message, cut to the event limit."""
    payload = encode({"phase": "queued", "input": message, "receipt": receipt})
    if len(payload) > size_max:
        room = (size_max - ENVELOPE_BYTES) // BYTES_A_CHARACTER_MAX
        cut = {**message, "parts": _cut_parts(message["parts"], max(1, room)), "truncated": True}
        payload = encode({"phase": "queued", "input": cut, "receipt": receipt})
    return "lifecycle", payload, False


def _cut_parts(parts: list[dict[str, Any]], chars_max: int) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for part in parts:
        text = part["text"][:chars_max]
        chars_max -= len(text)
        if text:
            kept.append({**part, "text": text})
    return kept


def started(attempt: int, started_at: int) -> Told:
    return "lifecycle", encode({"phase": "start", "attempt": attempt, "startedAt": rfc3339(started_at)}), False


def resumed(attempt: int, started_at: int, resets: list[str]) -> Told:
    """`resets`: ids of messages that were not finished; what came of them is to be dropped."""
    data = {"phase": "resumed", "attempt": attempt, "startedAt": rfc3339(started_at), "resets": resets}
    return "lifecycle", encode(data), False


def model_called(step: int, model: str, attempt: int, message_id: str) -> Told:
    provider = model.split(":", 1)[0]
    data = {
        "phase": "model",
        "step": step,
        "provider": provider,
        "model": model,
        "attempt": attempt,
        "messageId": message_id,
    }
    return "lifecycle", encode(data), False


def step_ended(step: int, usage: dict[str, Any]) -> Told:
    return "lifecycle", encode({"phase": "step-end", "step": step, "usage": usage}), False


def message_reset(stream: str, message_id: str) -> Told:
    return stream, encode({"messageId": message_id, "phase": "reset"}), False


def message_delta(message_id: str, delta: str, offset: int) -> bytes:
    """Payload of a delta of `assistant` or `thinking`; `offset` counts code points."""
    return b'{"messageId":"%b","delta":%b,"offset":%d}' % (message_id.encode(), orjson.dumps(delta), offset)


def message_ended(stream: str, message_id: str, text: str, stop_reason: str, size_max: int) -> Told:
    """`text` stands in it when it fits the event limit."""
    data: dict[str, Any] = {"messageId": message_id, "phase": "end", "stopReason": stop_reason, "length": len(text)}
    payload = encode({**data, "text": text})
    return stream, payload if len(payload) <= size_max else encode(data), False


def ended(outcome: Outcome, times: dict[str, str | None], usage: dict[str, Any] | None, reason: str | None) -> Told:
    """The terminal lifecycle event. `reason`: what the caller of an abort said."""
    data: dict[str, Any] = {"phase": "error" if outcome.is_error else "end", "final": True, **times}
    if outcome.is_error:
        data["error"] = outcome.error_json()
    else:
        data["outcome"] = outcome.code
    data["status"] = outcome.status.value
    data["stopReason"] = outcome.stop_reason
    if usage is not None:
        data["usage"] = usage
    if reason is not None:
        data["reason"] = reason
    return "lifecycle", encode(data), True
