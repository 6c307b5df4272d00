"""The exception tree. One code a class; the code list is closed and printed in the docs.

    LanewayError                        code                      status
    ├── RequestError                    (what a client sent)
    │   ├── BadRequest                  bad-request               400
    │   ├── IdempotencyKeyRequired      idempotency-key-required  400
    │   ├── BadHost                     bad-host                  403
    │   ├── BadOrigin                   bad-origin                403
    │   ├── NotFound                    not-found                 404
    │   ├── RunNotFound                 run-not-found             404
    │   ├── SessionNotFound             session-not-found         404
    │   ├── MethodNotAllowed            method-not-allowed        405
    │   ├── NotAcceptable               not-acceptable            406
    │   ├── RunDeleted                  deleted                   410
    │   ├── SessionBusy                 session-busy              409
    │   ├── SessionConflict             session-conflict          409
    │   ├── PayloadTooLarge             payload-too-large         413
    │   ├── UnsupportedMediaType        unsupported-media-type    415
    │   ├── ValidationFailed            validation-failed         422
    │   ├── NotAvailable                not-available             422
    │   └── IdempotencyKeyReused        idempotency-key-reused    422
    ├── ServiceError                    (what the service cannot do now; retryable)
    │   ├── RateLimited                 rate-limited              429
    │   ├── Draining                    draining                  503
    │   ├── QueueFull                   queue-full                503
    │   └── StoreBusy                   store-busy                503
    ├── InternalError                   internal                  500
    └── StartError                      (the process cannot start or go on; one clear line, exit 1)
        ├── SettingsError
        ├── StateDirBusy
        └── StoreUnusable

A programming mistake is an AssertionError, never one of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One wrong place in a request: what is wrong and where. Exactly one of the three places is set.

    `pointer` is a JSON pointer as a fragment (`#/queue/mode`), `parameter` the name of a path or query
    parameter, `header` the name of a header.
    """

    detail: str
    pointer: str | None = None
    parameter: str | None = None
    header: str | None = None


class LanewayError(Exception):
    """Base of all named failures. `str(error)` is a sentence for people that says what to do."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    retryable: ClassVar[bool] = False


class RequestError(LanewayError):
    """What a client sent cannot be done. Carries the wrong places, if any."""

    code = "bad-request"
    status = 400
    title = "Bad request"

    def __init__(self, detail: str, *errors: FieldProblem, allow: str | None = None) -> None:
        super().__init__(detail)
        self.errors = errors
        self.allow = allow


class BadRequest(RequestError):
    """The bytes are not what the media type or header says."""


class IdempotencyKeyRequired(RequestError):
    """`Last-Event-ID` on an accepting POST without `Idempotency-Key`."""

    code = "idempotency-key-required"
    title = "Idempotency key required"


class BadHost(RequestError):
    """The Host header names a host that this service does not answer for (DNS rebinding)."""

    code = "bad-host"
    status = 403
    title = "Host not allowed"


class BadOrigin(RequestError):
    """A web page of another origin tried to drive the service."""

    code = "bad-origin"
    status = 403
    title = "Origin not allowed"


class NotFound(RequestError):
    """No such route or thing."""

    code = "not-found"
    status = 404
    title = "Not found"


class RunNotFound(NotFound):
    """Unknown run, or not the caller's."""

    code = "run-not-found"
    title = "Run not found"


class RunDeleted(RequestError):
    """The caller's run was there, and has been kept for `retention.runs_days`."""

    code = "deleted"
    status = 410
    title = "Deleted"


class SessionNotFound(NotFound):
    """Unknown session, or not the caller's."""

    code = "session-not-found"
    title = "Session not found"


class MethodNotAllowed(RequestError):
    """The route exists, the method does not. `allow` lists those that do."""

    code = "method-not-allowed"
    status = 405
    title = "Method not allowed"


class NotAcceptable(RequestError):
    """None of the media types in Accept can be served."""

    code = "not-acceptable"
    status = 406
    title = "Not acceptable"


class SessionBusy(RequestError):
    """The session has work and the request said to refuse then, or another writer holds its transcript."""

    code = "session-busy"
    status = 409
    title = "Session busy"
    retryable = True


class SessionConflict(RequestError):
    """`sessionKey` and `sessionId` name different sessions."""

    code = "session-conflict"
    status = 409
    title = "Session conflict"


class PayloadTooLarge(RequestError):
    """The body is over `limits.request_body_bytes`."""

    code = "payload-too-large"
    status = 413
    title = "Payload too large"


class UnsupportedMediaType(RequestError):
    """The body is not JSON."""

    code = "unsupported-media-type"
    status = 415
    title = "Unsupported media type"


class ValidationFailed(RequestError):
    """Fields unknown, missing, of the wrong type or out of bounds."""

    code = "validation-failed"
    status = 422
    title = "Validation failed"


class NotAvailable(RequestError):
    """A part of the contract that this build does not have yet."""

    code = "not-available"
    status = 422
    title = "Not available"


class IdempotencyKeyReused(RequestError):
    """The key stands for another body."""

    code = "idempotency-key-reused"
    status = 422
    title = "Idempotency key reused"


class ServiceError(LanewayError):
    """The service cannot do it now. `retry_after_ms` is the least time to wait before asking again."""

    status = 503
    title = "Service unavailable"
    retryable = True

    def __init__(self, detail: str, *, retry_after_ms: int = 1000, run_id: str | None = None) -> None:
        super().__init__(detail)
        self.retry_after_ms = retry_after_ms
        self.run_id = run_id


class RateLimited(ServiceError):
    """A per-principal bound is reached."""

    code = "rate-limited"
    status = 429
    title = "Too many requests"


class Draining(ServiceError):
    """The service is shutting down and takes no new runs."""

    code = "draining"
    title = "Draining"


class QueueFull(ServiceError):
    """The session's queue has reached its cap; nothing was stored."""

    code = "queue-full"
    title = "Queue full"


class StoreBusy(ServiceError):
    """The store did not take the write in time. With `run_id`, the outcome of the commit is unknown."""

    code = "store-busy"
    title = "Store busy"


class InternalError(LanewayError):
    """Something of ours broke; details are in the log under the request id."""


class StartError(LanewayError):
    """The process cannot start or go on. The message is the one line that the operator sees."""


class SettingsError(StartError):
    """A setting is unknown or out of bounds; names the source, the key and what is allowed."""


class StateDirBusy(StartError):
    """Another process serves this state directory; names it."""


class StoreUnusable(StartError):
    """The database is read-only, full, locked, corrupt or newer than the code."""
