"""What the signatures of routes do not say: the headers and bodies that they read by hand, and what they answer.

For the OpenAPI document alone, and loaded with it. Under each operation's id; models by their names in `answers`,
`blocks` and `schemas`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app import errors as err
from app.api.problems import MEDIA_TYPE
from app.api.requests import EVENT_STREAM, JSON


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: what it means, the model of its JSON, or models by media type, and headers of its own."""

    text: str
    content: str | Mapping[str, str] | None = None
    headers: tuple[str, ...] = ()

    @property
    def models(self) -> Mapping[str, str]:
        """By media type."""
        return {JSON: self.content} if isinstance(self.content, str) else self.content or {}


@dataclass(frozen=True, slots=True)
class Operation:
    """`problems` are those beside the problems of every route, `body` is the model of a JSON body."""

    answers: Mapping[int, Answer]
    problems: tuple[type[err.LanewayError], ...] = ()
    headers: tuple[str, ...] = ()
    body: str | None = None
    body_required: bool = True


EVERYWHERE = (err.BadHost, err.BadOrigin, err.InternalError)
"""Problems of every route."""

IN_THE_API = (*EVERYWHERE, err.ValidationFailed)
"""Problems of every route under `/api`."""

_BODY = (err.BadRequest, err.PayloadTooLarge, err.UnsupportedMediaType)
_LIST = (err.BadRequest, err.StoreBusy)
_RUN = (err.RunNotFound, err.RunDeleted)
_ACCEPTED = ("Location", "Idempotent-Replayed")


def problem_answer(text: str, *headers: str) -> Answer:
    return Answer(text, {MEDIA_TYPE: "Problem"}, headers)


OPERATIONS = {
    "acceptRun": Operation(
        {
            200: Answer(
                "With `Prefer: wait`, the run, which has ended. With `Accept: text/event-stream`, its events.",
                {JSON: "Run", EVENT_STREAM: "EventBlock"},
                (*_ACCEPTED, "Preference-Applied"),
            ),
            202: Answer("The run is durable.", "Accepted", (*_ACCEPTED, "Preference-Applied")),
            204: Answer(
                "A repeat for the stream, with a cursor behind its end: there is nothing more.", None, _ACCEPTED
            ),
        },
        (
            *(*_BODY, err.IdempotencyKeyRequired, err.IdempotencyKeyReused, err.NotAcceptable, err.NotAvailable),
            *(err.SessionNotFound, err.SessionBusy, err.SessionConflict, err.RateLimited),
            *(err.Draining, err.QueueFull, err.StoreBusy),
        ),
        headers=("Idempotency-Key", "Accept", "Prefer", "Last-Event-ID"),
        body="RunBody",
    ),
    "listRuns": Operation({200: Answer("A page of runs.", "RunPage")}, _LIST),
    "readRun": Operation({200: Answer("The run.", "Run")}, (*_RUN, err.StoreBusy)),
    "waitForRun": Operation(
        {200: Answer("The run has ended, or the wait has expired.", "WaitResult")}, (*_RUN, err.StoreBusy)
    ),
    "abortRun": Operation(
        {200: Answer("The wish is durable, or the run had ended.", "AbortResult")},
        (*_BODY, *_RUN, err.StoreBusy),
        body="AbortBody",
        body_required=False,
    ),
    "followRun": Operation(
        {
            200: Answer("The events.", {EVENT_STREAM: "EventBlock"}),
            204: Answer("The cursor stands behind the end: there is nothing more, so do not come back."),
        },
        (err.BadRequest, *_RUN, err.NotAcceptable, err.NotAvailable, err.RateLimited, err.StoreBusy),
        headers=("Last-Event-ID",),
    ),
    "listSessions": Operation({200: Answer("A page of sessions.", "SessionPage")}, _LIST),
    "readSession": Operation({200: Answer("The session.", "Session")}, (err.SessionNotFound, err.StoreBusy)),
    "abortSession": Operation(
        {200: Answer("The wish is durable for every open run.", "SessionAbortResult")},
        (*_BODY, err.SessionNotFound, err.StoreBusy),
        body="AbortBody",
        body_required=False,
    ),
    "readTranscript": Operation(
        {200: Answer("A page of the transcript.", "TranscriptPage")},
        (*_LIST, err.SessionNotFound, err.NotAvailable),
    ),
    "listAudit": Operation({200: Answer("A page of the ledger.", "AuditPage")}, _LIST),
    "listAgents": Operation({200: Answer("All agents.", "AgentPage")}),
    "listModels": Operation({200: Answer("All models that agents use.", "ModelPage")}),
    "listTools": Operation({200: Answer("All tools of the service.", "ToolPage")}),
    "readHealth": Operation({200: Answer("It is.", "Health")}),
    "readReadiness": Operation({200: Answer("They are.", "Ready"), 503: Answer("They are not.", "NotReady")}),
    "readMetrics": Operation({200: Answer("The gauges.", {"text/plain": "MetricsText"})}),
}
