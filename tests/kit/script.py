"""Which reply a request gets.

Rules by marker come first, the newest before the older; then the numbered replies, one a request; then
the function; then the default. Strict refusals use up nothing. Chosen by the server's thread, set by tests.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.kit.recording import Request
from tests.kit.steps import Reply, Step, reply_text

ReplyFunction = Callable[[Request], "Reply | None"]
ReplySource = Reply | ReplyFunction


def echo(deltas: int = 4, delay_s: float = 0.0) -> ReplyFunction:
    """Says the last user message back."""
    return lambda request: reply_text(request.last_user_text or "nothing", deltas, delay_s)


@dataclass(slots=True)
class Rule:
    """Replies for requests whose last user text holds the marker: in turn, the last one for ever unless `once`."""

    marker: str
    replies: deque[ReplySource]
    once: bool
    used: int = 0

    def take(self) -> ReplySource | None:
        if not self.replies:
            return None
        self.used += 1
        return self.replies.popleft() if self.once or len(self.replies) > 1 else self.replies[0]


@dataclass(slots=True)
class Script:
    """The rules in force."""

    default: ReplySource = field(default_factory=echo)
    _rules: list[Rule] = field(default_factory=list)
    _numbered: deque[ReplySource] = field(default_factory=deque)
    _function: ReplyFunction | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on(self, marker: str, replies: Sequence[ReplySource], once: bool) -> None:
        """Add a rule."""
        with self._lock:
            self._rules.insert(0, Rule(marker, deque(replies), once))

    def set(self, source: ReplyFunction | Iterable[ReplySource] | Reply) -> None:
        """A function replaces the function; replies queue up behind those not used yet; steps are one reply."""
        with self._lock:
            if callable(source):
                self._function = source
                return
            items = list(source)
            if items and all(isinstance(item, Step) for item in items):
                self._numbered.append([item for item in items if isinstance(item, Step)])
                return
            for item in items:
                if isinstance(item, Step):
                    raise TypeError("a script is a list of replies, or one reply as a list of steps, not a mixture")
                self._numbered.append(item)

    def clear(self) -> None:
        """Back to the echo."""
        with self._lock:
            self.default = echo()
            self._rules.clear()
            self._numbered.clear()
            self._function = None

    def choose(self, request: Request) -> Reply:
        """The reply for this request; notes the marker on it."""
        with self._lock:
            source = self._by_marker(request)
            if source is None and self._numbered:
                source = self._numbered.popleft()
            function, default = self._function, self.default
        reply = _resolve(source, request)
        if reply is None:
            reply = _resolve(function, request)
        if reply is None:
            reply = _resolve(default, request)
        return reply if reply is not None else reply_text("nothing")

    def _by_marker(self, request: Request) -> ReplySource | None:
        for rule in self._rules:
            if rule.marker in request.last_user_text and (source := rule.take()) is not None:
                request.marker = rule.marker
                return source
        return None


def _resolve(source: ReplySource | None, request: Request) -> Reply | None:
    return source(request) if callable(source) else source


__all__ = ["Reply", "ReplyFunction", "ReplySource", "Rule", "Script", "Step", "echo"]
