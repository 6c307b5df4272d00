"""What the model server saw: every request with its times, and how many were in progress at once.

Written by the server's own thread, read by tests. Times are `time.monotonic()`, as in the stream client,
so that both ends of one run can be compared.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.kit.pairing import text_of

_SESSION = re.compile(r"\[s:([^\]]+)\]")


@dataclass(slots=True, eq=False)
class Request:
    """One call of the model. Times are None until the thing happened."""

    number: int
    path: str
    headers: Mapping[str, str]
    body_bytes: bytes
    body: dict[str, Any]
    messages: list[dict[str, Any]]
    session: str
    """From `[s:NAME]` in the messages, the first user message first; empty without one."""
    last_user_text: str
    arrived_at: float
    marker: str | None = None
    """The marker of the rule that answered it, when one did."""
    faults: tuple[str, ...] = ()
    status: int | None = None
    first_byte_at: float | None = None
    ended_at: float | None = None
    """The server finished its reply, whole or broken as scripted."""
    disconnected_at: float | None = None
    """The client went away before that."""

    @property
    def over(self) -> bool:
        return self.ended_at is not None or self.disconnected_at is not None

    @property
    def roles(self) -> list[str]:
        return [str(message.get("role")) for message in self.messages]

    @property
    def user_texts(self) -> list[str]:
        return [text_of(message.get("content")) for message in self.messages if message.get("role") == "user"]

    @property
    def since_last_user(self) -> list[dict[str, Any]]:
        """The messages behind the last one of the user: what its run has done so far."""
        last = max((place for place, role in enumerate(self.roles) if role == "user"), default=-1)
        return self.messages[last + 1 :]

    @property
    def tool_results(self) -> list[str]:
        return [text_of(message.get("content")) for message in self.messages if message.get("role") == "tool"]


@dataclass(frozen=True, slots=True)
class Violation:
    """A request that broke rule R2."""

    number: int
    session: str
    fault: str


def read_request(
    number: int, path: str, headers: Mapping[str, str], body_bytes: bytes, body: dict[str, Any]
) -> Request:
    """A request from its parts; the marks are taken from the messages."""
    listed = body.get("messages")
    messages = [message for message in listed if isinstance(message, dict)] if isinstance(listed, list) else []
    users = [text_of(message.get("content")) for message in messages if message.get("role") == "user"]
    others = (text_of(message.get("content")) for message in messages if message.get("role") != "user")
    return Request(
        number=number,
        path=path,
        headers=headers,
        body_bytes=body_bytes,
        body=body,
        messages=messages,
        session=_session_of(users) or _session_of(others),
        last_user_text=users[-1] if users else "",
        arrived_at=time.monotonic(),
    )


@dataclass(slots=True)
class Recording:
    """All requests in order of arrival, the rule breaks, and the counts in progress by session."""

    requests: list[Request] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    """What a test's own reply function raised."""
    in_flight: Counter[str] = field(default_factory=Counter)
    max_in_flight: Counter[str] = field(default_factory=Counter)
    max_in_flight_total: int = 0
    _open: dict[int, tuple[Request, Callable[[], bool]]] = field(default_factory=dict)
    _numbers: int = 0
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def next_number(self) -> int:
        """Numbers rise over the server's life and are never given twice."""
        with self._lock:
            self._numbers += 1
            return self._numbers

    def begin(self, request: Request, client_gone: Callable[[], bool]) -> None:
        """Count a request in. `client_gone` tells, without waiting, whether its client has closed already."""
        with self._lock:
            for other, gone in list(self._open.values()):
                if other.session == request.session and gone():
                    self.leave(other)
            self.requests.append(request)
            self.violations += [Violation(request.number, request.session, fault) for fault in request.faults]
            self._open[request.number] = (request, client_gone)
            self.in_flight[request.session] += 1
            now = self.in_flight[request.session]
            self.max_in_flight[request.session] = max(self.max_in_flight[request.session], now)
            self.max_in_flight_total = max(self.max_in_flight_total, len(self._open))

    def end(self, request: Request) -> None:
        """Count a request out: its reply is complete."""
        self._close(request, disconnected=False)

    def leave(self, request: Request) -> None:
        """Count a request out: its client has gone."""
        self._close(request, disconnected=True)

    def forget(self) -> None:
        """Drop what was recorded; requests in progress stay counted."""
        with self._lock:
            self.requests.clear()
            self.violations.clear()
            self.errors.clear()
            self.max_in_flight = Counter(+self.in_flight)
            self.max_in_flight_total = len(self._open)

    def _close(self, request: Request, *, disconnected: bool) -> None:
        with self._lock:
            if self._open.pop(request.number, None) is None:
                return
            self.in_flight[request.session] -= 1
            if disconnected:
                request.disconnected_at = time.monotonic()
            else:
                request.ended_at = time.monotonic()


def _session_of(texts: list[str] | Iterator[str]) -> str:
    for words in texts:
        if found := _SESSION.search(words):
            return found.group(1)
    return ""
