"""A strict parser of Server-Sent Events: bytes in, events out, every oddity noted.

It splits lines at LF, CR and CRLF only, decodes whole lines as UTF-8, and notes as a violation what our
contract rules out though the standard allows it: comments, blocks without data, unknown fields, data that is not JSON.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Event:
    """One block. `received_at` is `time.monotonic()` of the read that completed it."""

    event: str
    data: Any
    raw: str
    id: str | None
    """The id that stands in this block."""
    last_id: str
    """The id in force after it, as a browser keeps it."""
    retry: int | None
    received_at: float

    @property
    def stream(self) -> str:
        """The stream by the envelope, else by the event name."""
        named = self.data.get("stream") if isinstance(self.data, dict) else None
        return str(named or self.event)

    @property
    def seq(self) -> int | None:
        found = self.data.get("seq") if isinstance(self.data, dict) else None
        return found if isinstance(found, int) else None

    @property
    def first_seq(self) -> int | None:
        """The first number that this event covers."""
        found = self.data.get("firstSeq") if isinstance(self.data, dict) else None
        return found if isinstance(found, int) else self.seq

    @property
    def run_id(self) -> str | None:
        found = self.data.get("runId") if isinstance(self.data, dict) else None
        return found if isinstance(found, str) else None

    @property
    def payload(self) -> dict[str, Any]:
        """What stands in the envelope's `data`."""
        found = self.data.get("data") if isinstance(self.data, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def phase(self) -> str | None:
        found = self.payload.get("phase")
        return found if isinstance(found, str) else None

    @property
    def terminal(self) -> bool:
        """True for the lifecycle event that ends its run."""
        return self.stream == "lifecycle" and self.phase in ("end", "error")


@dataclass(slots=True)
class Parser:
    """Feed it what a connection gave; events come out as they are complete."""

    last_id: str = ""
    violations: list[str] = field(default_factory=list)
    _tail: bytes = b""
    _after_cr: bool = False
    _at_start: bool = True
    _event: str = ""
    _data: list[str] = field(default_factory=list)
    _id: str | None = None
    _retry: int | None = None
    _lines: int = 0

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete."""
        if not data:
            return []
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
        if not data:
            self._after_cr = False
            return []
        self._after_cr = data.endswith(b"\r")
        lines = (self._tail + data).splitlines(keepends=True)
        self._tail = lines.pop() if not lines[-1].endswith((b"\n", b"\r")) else b""
        now = time.monotonic()
        events: list[Event] = []
        for line in lines:
            content = line.rstrip(b"\r\n")
            if content:
                self._take_line(content)
            elif (event := self._close_block(now)) is not None:
                events.append(event)
        return events

    @property
    def inside_block(self) -> bool:
        """True when the bytes so far stop in the middle of a block, which a reader has to drop."""
        return bool(self._tail or self._lines)

    def _take_line(self, line: bytes) -> None:
        if self._at_start and line.startswith(b"\xef\xbb\xbf"):
            self.violations.append("byte order mark")
            line = line[3:]
        self._at_start = False
        self._lines += 1
        try:
            words = line.decode("utf-8")
        except UnicodeDecodeError:
            self.violations.append(f"line is not UTF-8: {line[:80]!r}")
            words = line.decode("utf-8", "replace")
        name, colon, value = words.partition(":")
        value = value.removeprefix(" ")
        if not name:
            self.violations.append(f"comment: {words[:80]!r}")
            self._lines -= 1
        elif name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id":
            self._take_id(value)
        elif name == "retry":
            self._take_retry(value)
        else:
            self.violations.append(f"unknown field: {words[:80]!r}")
        if name and not colon:
            self.violations.append(f"line without a colon: {words[:80]!r}")

    def _take_id(self, value: str) -> None:
        if "\0" in value:
            self.violations.append("id with NUL")
            return
        self._id = value

    def _take_retry(self, value: str) -> None:
        if value.isascii() and value.isdigit():
            self._retry = int(value)
        else:
            self.violations.append(f"retry is not a number: {value[:80]!r}")

    def _close_block(self, now: float) -> Event | None:
        had_lines, self._lines = self._lines, 0
        if self._id is not None:
            self.last_id = self._id
        event = None
        if self._data:
            raw = "\n".join(self._data)
            event = Event(
                event=self._event or "message",
                data=self._json(raw),
                raw=raw,
                id=self._id,
                last_id=self.last_id,
                retry=self._retry,
                received_at=now,
            )
        elif had_lines:
            self.violations.append(f"block without data (event {self._event!r}, id {self._id!r})")
        self._event, self._data, self._id, self._retry = "", [], None, None
        return event

    def _json(self, raw: str) -> Any:
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError:
            self.violations.append(f"data is not JSON: {raw[:80]!r}")
            return None
