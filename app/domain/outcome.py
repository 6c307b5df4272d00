"""How a run ends: the closed lists of outcomes and error codes, and the words each reader gets for them.

Stream, record, wait and ledger all derive their words from one Outcome, so they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.domain.run import RunStatus

OUTCOMES: dict[str, str] = {
    "completed": "The model came to its natural end, or to a stop that `stopReason` names.",
    "silent": "The run ended with nothing to show, and nothing was required.",
    "cancelled": "Stopped by an abort of the run or of its session, or withdrawn while queued.",
    "superseded": "Stopped because a newer input took its place.",
}
"""Outcomes of a terminal `lifecycle` `end`, with their meaning."""

ERROR_CODES: dict[str, str] = {
    "provider-error": "The model's provider failed.",
    "provider-auth": "The provider refused the credential, or none is configured.",
    "provider-rate-limited": "The provider's rate limit was reached.",
    "provider-overloaded": "The provider is overloaded.",
    "provider-unreachable": "No connection to the provider could be made, or it broke.",
    "provider-timeout": "The provider reported a timeout of its own.",
    "provider-refused": "The provider refused the request.",
    "provider-bad-response": "The provider's answer was broken or incomplete.",
    "model-not-found": "No such model is configured or known to the provider.",
    "model-idle-timeout": "The model sent no content for longer than its idle limit.",
    "context-overflow": "The conversation is larger than the model's context.",
    "empty-reply": "The model gave nothing to show although a reply was required.",
    "tool-rounds-exhausted": "The model asked for tools in more rounds than a run may have.",
    "tool-loop": "The model repeated the same call with the same result, or called tools that do not exist, too often.",
    "output-limit": "The model's output limit cut its answer in the middle of a tool call, again and again.",
    "workspace-unusable": "The agent's workspace folder cannot be made or used.",
    "session-busy": "Another process held the session's transcript for longer than may be waited.",
    "interrupted": "The service stopped while the run was executing, and it could not go on.",
    "timed-out": "The run reached its own time limit.",
    "internal": "The service failed; the log has the details under the run id.",
}
"""Codes of a terminal `lifecycle` `error`, with their meaning."""

ABORT_CODES = ("cancelled", "superseded")
"""What an abort may turn a run into."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A terminal outcome. `code` is from OUTCOMES or ERROR_CODES; `message`, for people, goes with an error."""

    status: RunStatus
    code: str
    message: str = ""
    retryable: bool = False
    stop_reason: str | None = None

    @property
    def is_error(self) -> bool:
        """Whether the terminal event is `error` (else `end`)."""
        return self.code in ERROR_CODES

    @property
    def outcome(self) -> str | None:
        """`outcome` of the record and of the terminal `end`."""
        return None if self.is_error else self.code

    def error_json(self) -> dict[str, Any] | None:
        """`error` of the record, the wait and the terminal `error`; a cancelled run has one for waiters too."""
        if self.is_error:
            return {"code": self.code, "message": self.message, "retryable": self.retryable}
        return None

    def ledger(self) -> tuple[str, str]:
        """(status, code) of the ledger's row."""
        if self.status is RunStatus.SUCCEEDED and self.stop_reason not in (None, "stop"):
            return self.status.value, str(self.stop_reason)
        return self.status.value, self.code


def completed(stop_reason: str) -> Outcome:
    return Outcome(RunStatus.SUCCEEDED, "completed", stop_reason=stop_reason)


def silent(stop_reason: str) -> Outcome:
    return Outcome(RunStatus.SUCCEEDED, "silent", stop_reason=stop_reason)


def failed(code: str, message: str, *, retryable: bool = False) -> Outcome:
    assert code in ERROR_CODES, code
    return Outcome(RunStatus.FAILED, code, message, retryable, stop_reason="error")


def timed_out(limit_seconds: float) -> Outcome:
    return Outcome(
        RunStatus.TIMED_OUT,
        "timed-out",
        f"The run reached its time limit of {limit_seconds:g} s of execution.",
        stop_reason="aborted",
    )


def aborted(code: str) -> Outcome:
    """What a run with an abort request ends as."""
    assert code in ABORT_CODES, code
    return Outcome(RunStatus.CANCELLED, code, stop_reason="aborted")


def interrupted(message: str) -> Outcome:
    return failed("interrupted", message, retryable=True)


WAIT_STATUS = {
    RunStatus.SUCCEEDED: "ok",
    RunStatus.FAILED: "error",
    RunStatus.TIMED_OUT: "timeout",
    RunStatus.CANCELLED: "error",
    RunStatus.DROPPED: "error",
}
"""The wait call's word for a terminal status; a merged run has that of the run it went into."""

CANCEL_MESSAGES = {
    "cancelled": "The run was stopped on request.",
    "superseded": "The run was stopped because a newer input took its place.",
}
"""Text for waiters on a cancelled run."""


def wait_error(status: RunStatus, outcome: str | None, error: dict[str, Any] | None) -> dict[str, Any] | None:
    """`error` of the wait call: that of the run; for a cancelled one, its code and a sentence."""
    if status is RunStatus.CANCELLED:
        code = outcome or "cancelled"
        return {"code": code, "message": CANCEL_MESSAGES[code], "retryable": False}
    return error
