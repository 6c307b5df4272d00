"""The lines of a provider's event stream, read the way providers send them rather than the way the standard has them.

Lines end with LF, CR or CRLF and with nothing else, so that separators inside JSON stay where they are. An event is
told as soon as its JSON is whole: not every server sends the blank line behind it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import orjson

from app.providers.errors import bad_response

EVENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""One event may not be larger; a stream without line ends is not an event stream."""

END_MARK: Final = b"[DONE]"
_BOM: Final = b"\xef\xbb\xbf"
_FIELDS: Final = (b"data", b"event", b"id", b"retry")


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `value` is the JSON object of its data, None for the end mark."""

    name: bytes
    raw: bytes
    value: dict[str, Any] | None


class SseReader:
    """Takes bytes as they come, cut anywhere, and gives the events that are whole. Raises ProviderError."""

    __slots__ = ("_began", "_name", "_partial", "_partial_bytes", "_pending", "_provider", "_skip_lf")

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._pending: bytes | None = None
        self._name = b""
        self._skip_lf = False
        self._began = False

    def feed(self, chunk: bytes, told: list[Event]) -> None:
        """Append to `told` what `chunk` completes; what came before a broken line is there when this raises."""
        if self._skip_lf and chunk:
            self._skip_lf = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._skip_lf = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        if len(lines) == 1:
            self._keep(chunk)
            return
        if self._partial:
            lines[0] = b"".join((*self._partial, lines[0]))
        rest = lines.pop()
        self._partial, self._partial_bytes = [], 0
        for line in lines:
            self._line(line, told)
        self._keep(rest)

    def finish(self, told: list[Event], *, strict: bool) -> None:
        """The body has ended. A last line without its end counts when it is whole, else it is broken when `strict`."""
        rest = b"".join(self._partial)
        self._partial = []
        if rest:
            self._line(rest, told)
        if self._pending is not None and strict:
            raise self._broken()
        if not self._began and strict:
            raise bad_response(self._provider, "sent an empty answer")

    def _keep(self, rest: bytes) -> None:
        if not rest:
            return
        self._partial.append(rest)
        self._partial_bytes += len(rest)
        if self._partial_bytes > EVENT_BYTES_MAX:
            raise bad_response(self._provider, "sent a line without an end")

    def _line(self, line: bytes, told: list[Event]) -> None:
        if not self._began:
            line = line.removeprefix(_BOM)
            self._check_first(line)
        if line.startswith(b"data:"):
            self._data(line[6:] if line.startswith(b" ", 5) else line[5:], told)
        elif not line:
            if self._pending is not None:
                raise self._broken()
            self._name = b""
        elif line.startswith(b"event:"):
            self._name = line[6:].strip()

    def _check_first(self, line: bytes) -> None:
        """The first line with something on it shows whether this is an event stream at all."""
        if not line.strip():
            return
        if not line.startswith(b":") and line.partition(b":")[0] not in _FIELDS:
            raise bad_response(
                self._provider, "answered with something that is not an event stream; check base_url", retryable=False
            )
        self._began = True

    def _data(self, payload: bytes, told: list[Event]) -> None:
        if self._pending is not None:
            payload = self._pending + b"\n" + payload
        elif payload.strip().startswith(END_MARK):
            told.append(Event(self._name, END_MARK, None))
            return
        elif not payload.strip():
            return
        value = _parsed(payload)
        if value is not None:
            self._pending = None
            told.append(Event(self._name, payload, value))
        elif len(payload) > EVENT_BYTES_MAX:
            raise bad_response(self._provider, "sent an event that is too large")
        else:
            self._pending = payload

    def _broken(self) -> Exception:
        self._pending = None
        return bad_response(self._provider, "sent a broken event")


def _parsed(payload: bytes) -> dict[str, Any] | None:
    """The JSON object, or None for what is none (yet)."""
    try:
        value: object = orjson.loads(payload)
    except orjson.JSONDecodeError:
        # The standard library also takes NaN and the halves of a character that were cut apart, and servers send both.
        try:
            value = json.loads(payload)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None
