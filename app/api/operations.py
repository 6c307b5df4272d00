"""What the signatures of routes do not say: the headers and bodies that they read by hand, and what they answer.

For the OpenAPI document alone, and loaded with it. Under each operation's id; models by their names in `answers`,
`blocks` and `schemas`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app import errors as err
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


Kinds = tuple[type[err.LanewayError], ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """`problems` are all that it may end in, `body` is the model of a JSON body."""

    answers: Mapping[int, Answer]
    problems: Kinds = ()
    headers: tuple[str, ...] = ()
    body: str | None = None
    body_required: bool = True


_EVERYWHERE: Kinds = (err.BadHost, err.BadOrigin)
_PROBE: Kinds = (*_EVERYWHERE, err.InternalError)
_API: Kinds = (*_PROBE, err.ValidationFailed)
_STORED: Kinds = (*_API, err.StoreBusy)
_LIST: Kinds = (*_STORED, err.BadRequest)
_RUN: Kinds = (*_STORED, err.RunNotFound, err.RunDeleted)
_SESSION: Kinds = (*_STORED, err.SessionNotFound)
_BODY: Kinds = (err.BadRequest, err.PayloadTooLarge, err.UnsupportedMediaType)
_ACCEPTED = ("Location", "Idempotent-Replayed")


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
            *(*_SESSION, *_BODY, err.IdempotencyKeyRequired, err.IdempotencyKeyReused, err.NotAcceptable),
            *(err.NotAvailable, err.SessionBusy, err.SessionConflict, err.RateLimited, err.Draining, err.QueueFull),
            err.RunDeleted,
        ),
        headers=("Idempotency-Key", "Accept", "Prefer", "Last-Event-ID"),
        body="RunBody",
    ),
    "listRuns": Operation({200: Answer("A page of runs.", "RunPage")}, _LIST),
    "readRun": Operation({200: Answer("The run.", "Run")}, _RUN),
    "waitForRun": Operation({200: Answer("The run has ended, or the wait has expired.", "WaitResult")}, _RUN),
    "abortRun": Operation(
        {200: Answer("The wish is durable, or the run had ended.", "AbortResult")},
        (*_RUN, *_BODY),
        body="AbortBody",
        body_required=False,
    ),
    "followRun": Operation(
        {
            200: Answer("The events.", {EVENT_STREAM: "EventBlock"}),
            204: Answer("The cursor stands behind the end: there is nothing more, so do not come back."),
        },
        (*_RUN, err.BadRequest, err.NotAcceptable, err.NotAvailable, err.RateLimited),
        headers=("Last-Event-ID",),
    ),
    "listSessions": Operation({200: Answer("A page of sessions.", "SessionPage")}, _LIST),
    "readSession": Operation({200: Answer("The session.", "Session")}, _SESSION),
    "abortSession": Operation(
        {200: Answer("The wish is durable for every open run.", "SessionAbortResult")},
        (*_SESSION, *_BODY),
        body="AbortBody",
        body_required=False,
    ),
    "readTranscript": Operation(
        {200: Answer("A page of the transcript.", "TranscriptPage")},
        (*_LIST, err.SessionNotFound, err.NotAvailable),
    ),
    "listAudit": Operation({200: Answer("A page of the ledger.", "AuditPage")}, _LIST),
    "listAgents": Operation({200: Answer("All agents.", "AgentPage")}, _API),
    "listModels": Operation({200: Answer("All models that agents use.", "ModelPage")}, _API),
    "listTools": Operation({200: Answer("All tools of the service.", "ToolPage")}, _API),
    "readHealth": Operation({200: Answer("The process is alive.", "Health")}, _EVERYWHERE),
    "readReadiness": Operation(
        {200: Answer("New runs are taken.", "Ready"), 503: Answer("New runs are not taken.", "NotReady")}, _PROBE
    ),
    "readMetrics": Operation({200: Answer("The gauges.", {"text/plain": "MetricsText"})}, _PROBE),
}
