"""What every refusal must satisfy: one problem document, whole and consistent, and nothing stored."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.kit.client import Answer
from tests.kit.service import Service

MEDIA_TYPE = "application/problem+json"
_MEMBERS = {"type", "title", "status", "detail", "instance", "code", "retryable"}
_MORE = {"retryAfterMs", "runId", "errors"}
_PLACES = ("pointer", "parameter", "header")
_RETRYABLE = {"session-busy", "rate-limited", "draining", "queue-full", "store-busy"}
_STORED = ("run", "run_text", "session", "idem", "transcript", "audit")


def check_problem(answer: Answer, status: int, code: str, **place: str) -> dict[str, Any]:
    """The document of a refusal. `place` (`pointer=`, `parameter=` or `header=`) has to be among its `errors`."""
    assert answer.status == status, f"expected {status}, got {answer.status}: {answer.body}"
    assert answer.headers.get("content-type") == MEDIA_TYPE, answer.headers
    body: dict[str, Any] = answer.body
    assert body["code"] == code, f"expected {code}: {body}"
    assert _MEMBERS <= body.keys() <= _MEMBERS | _MORE, body
    assert body["type"] == f"urn:laneway:problem:{code}" and body["status"] == status, body
    assert body["title"].strip() and body["detail"].strip(), body
    assert body["instance"] == f"urn:laneway:request:{answer.headers.get('x-request-id')}", (body, answer.headers)
    assert body["retryable"] is (code in _RETRYABLE), body
    assert ("retryAfterMs" in body) == ("retry-after" in answer.headers), (body, answer.headers)
    if "retryAfterMs" in body:
        assert int(answer.headers["retry-after"]) * 1000 >= body["retryAfterMs"] > 0, (body, answer.headers)
    for error in body.get("errors", []):
        assert error["detail"].strip(), body
        assert sum(name in error for name in _PLACES) == 1 and len(error) == 2, f"exactly one place each: {body}"
    for name, value in place.items():
        named = [error.get(name) for error in body.get("errors", [])]
        assert value in named, f"no {name} {value!r} in {body}"
    return body


def stored(service: Service) -> dict[str, int]:
    """How many rows there are of everything that accepting a run stores."""
    counts = ", ".join(f"(SELECT count(*) FROM {table}) AS {table}" for table in _STORED)
    # Rows of ended runs become fewer by themselves.
    counts += ", (SELECT count(DISTINCT run_id) FROM run_event) AS run_event"
    return service.query(f"SELECT {counts}")[0]


@contextlib.contextmanager
def nothing_stored(service: Service) -> Iterator[None]:
    """What is done inside leaves the tables as they are. No run may be open that writes by itself."""
    before = stored(service)
    yield
    assert stored(service) == before, "something was stored"
