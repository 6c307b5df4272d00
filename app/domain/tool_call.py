"""A call of a tool: where it stands, the closed list of how it ends, and its one result as it is kept.

Stream, transcript and ledger all derive their words from one CallResult, so they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from app.domain.message import Message, ToolCallPart, ToolResultPart


class CallState(StrEnum):
    """`planned`: asked for. `intended`: may have started. The others have their result."""

    PLANNED = "planned"
    INTENDED = "intended"
    DONE = "done"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"

    @property
    def settled(self) -> bool:
        return self in _SETTLED


_SETTLED = frozenset({CallState.DONE, CallState.UNKNOWN, CallState.SKIPPED})


class Ending(NamedTuple):
    """The wire's word, the ledger's status, and what the code means."""

    outcome: str
    status: str
    meaning: str


CALL_CODES: dict[str, Ending] = {
    "completed": Ending("ok", "succeeded", "The tool returned a result."),
    "tool-error": Ending("error", "failed", "The tool could not do what was asked, or what it did failed."),
    "invalid-arguments": Ending("error", "failed", "The arguments are broken, too large, or not what the tool takes."),
    "unknown-tool": Ending("error", "failed", "There is no such tool."),
    "output-limit": Ending("error", "failed", "The model's output limit cut the answer, so none of its calls was run."),
    "timed-out": Ending("timed-out", "timed_out", "The tool reached its own time limit and was stopped."),
    "not-allowed": Ending("blocked", "blocked", "The operator's policy does not allow this call."),
    "cancelled": Ending("aborted", "cancelled", "The run was stopped before the tool had returned."),
    "unknown": Ending("unknown", "unknown", "The service stopped in the middle; whether it took effect is not known."),
}
"""How a call ends: a closed list."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """The one answer to a call. `text` is cleaned and cut to what is kept; `skipped`: the tool was never started."""

    message_id: str
    text: str
    code: str
    is_error: bool = True
    skipped: bool = False
    truncated: bool = False
    duration_ms: int = 0

    @property
    def ending(self) -> Ending:
        return CALL_CODES[self.code]

    def message(self, call: ToolCallPart) -> Message:
        """The transcript's entry for it."""
        part = ToolResultPart(call.tool_call_id, call.name, self.text, self.is_error, call.provider_id)
        return Message("tool", self.message_id, (part,))

    def to_text(self) -> str:
        """As the call's row keeps it."""
        return orjson.dumps(
            {
                "messageId": self.message_id,
                "text": self.text,
                "code": self.code,
                "isError": self.is_error,
                "skipped": self.skipped,
                "truncated": self.truncated,
                "durationMs": self.duration_ms,
            }
        ).decode()

    @staticmethod
    def from_text(value: str) -> CallResult:
        """The inverse of `to_text`."""
        read: dict[str, Any] = orjson.loads(value)
        return CallResult(
            read["messageId"],
            read["text"],
            read["code"],
            read["isError"],
            read["skipped"],
            read["truncated"],
            read["durationMs"],
        )


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call of an entry whose results are not in the transcript yet, as its row has it."""

    call: ToolCallPart
    message_id: str
    state: CallState
    result: CallResult | None = None
    group: str | None = None


INTERRUPTED = (
    "The service stopped while this tool was running. Whether it took effect is not known: look before you repeat it."
)
STOPPED = "The run was stopped while this tool was running; what it had done by then is not known."
NOT_STARTED = "This call was not started: the run was stopped before."


def closing(open_call: OpenCall, message_id: str, *, stopped: bool) -> CallResult:
    """The result of a call that will get no other. `stopped`: on purpose, by an abort or a limit; else by a failure."""
    if open_call.state is CallState.PLANNED:
        return CallResult(message_id, NOT_STARTED, "cancelled", skipped=True)
    if stopped:
        return CallResult(message_id, STOPPED, "cancelled")
    return CallResult(message_id, INTERRUPTED, "unknown")
