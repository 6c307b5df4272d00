"""The kit's check of answers by the document: what is described passes, and each kind of fault is named."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.api.words import ID, TIME
from tests.kit.contract import PROBLEM, Exchange, NotDescribed, expect
from tests.kit.sse_parser import Parser

NAMED = {"x-request-id": "r", "content-type": "application/json"}
REFUSED = {**NAMED, "content-type": PROBLEM}
STREAM = {**NAMED, "content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"}
RUN = f"/api/v1/runs/{ID}"
ABORTED = {"runId": ID, "status": "cancelled", "abortRequestedAt": TIME}


def problem(status: int, code: str, **more: Any) -> dict[str, Any]:
    urns = {"type": f"urn:laneway:problem:{code}", "instance": "urn:laneway:request:r"}
    return {**urns, "title": "x", "status": status, "detail": "x", "code": code, "retryable": False, **more}


def answer(method: str, path: str, status: int, body: Any, headers: dict[str, str] = NAMED) -> None:
    """Check one answer."""
    asked = expect(method, path)
    asked.begun(status, headers)
    asked.body(b"" if body is None else orjson.dumps(body))


@pytest.mark.parametrize(
    ("method", "path", "status", "body", "headers"),
    [
        ("POST", f"{RUN}/abort", 200, ABORTED, NAMED),
        ("POST", f"{RUN}/abort", 200, ABORTED, {**NAMED, "vary": "Origin", "cache-control": "no-store"}),
        ("GET", f"{RUN}?x=1", 422, problem(422, "validation-failed"), REFUSED),
        ("GET", "/nothing", 404, problem(404, "not-found"), REFUSED),
        ("DELETE", RUN, 405, problem(405, "method-not-allowed"), {**REFUSED, "allow": "GET"}),
        ("GET", f"{RUN}/events", 204, None, {"x-request-id": "r"}),
    ],
)
def test_what_is_described_passes(method: str, path: str, status: int, body: Any, headers: dict[str, str]) -> None:
    answer(method, path, status, body, headers)


@pytest.mark.parametrize(
    ("status", "body", "headers", "fault"),
    [
        (201, ABORTED, NAMED, "abortRun, POST .*: 201: the status is not described"),
        (200, ABORTED, {**NAMED, "content-type": "text/plain"}, "media type 'text/plain', described"),
        (200, ABORTED, {**NAMED, "x-more": "1"}, "header 'x-more' is not described"),
        (200, {**ABORTED, "more": 1}, NAMED, "'more' was unexpected"),
        (200, {"runId": ID, "status": "cancelled"}, NAMED, '"abortRequestedAt" is a required property'),
        (200, {**ABORTED, "status": "gone"}, NAMED, 'status: "gone" is not one of'),
        (200, {**ABORTED, "abortRequestedAt": "today"}, NAMED, 'abortRequestedAt: "today" is not valid'),
        (404, problem(404, "session-not-found"), REFUSED, "the problem 'session-not-found' is not described, only"),
        (404, problem(410, "run-not-found"), REFUSED, "the problem says 410"),
        (404, problem(404, "run-not-found", more=1), REFUSED, "'more' was unexpected"),
        (503, problem(503, "store-busy"), REFUSED, "no header Retry-After"),
        (503, problem(503, "store-busy"), {**REFUSED, "retry-after": "soon"}, "header Retry-After: .*not of type"),
        (200, ABORTED, {"content-type": "application/json"}, "no X-Request-Id"),
    ],
)
def test_a_fault_of_an_answer_is_named(status: int, body: Any, headers: dict[str, str], fault: str) -> None:
    with pytest.raises(NotDescribed, match=fault):
        answer("POST", f"{RUN}/abort", status, body, headers)


def test_what_is_no_operation_is_refused_as_what_it_is() -> None:
    with pytest.raises(NotDescribed, match="'application/json' where nothing is served"):
        answer("GET", "/nothing", 200, {})
    with pytest.raises(NotDescribed, match="the problem 'not-found', expected 'method-not-allowed'"):
        answer("DELETE", RUN, 404, problem(404, "not-found"), REFUSED)
    with pytest.raises(NotDescribed, match="Allow: 'POST'"):
        answer("DELETE", RUN, 405, problem(405, "method-not-allowed"), {**REFUSED, "allow": "POST"})
    with pytest.raises(NotDescribed, match="no answer to a preflight"):
        answer("OPTIONS", RUN, 204, None, {"x-request-id": "r"})


def told(asked: Exchange, envelope: dict[str, Any], name: str = "assistant") -> None:
    block = b"id: 3\nevent: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(envelope))
    for event in Parser().feed(block):
        asked.told(event)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, ""),
        ({"more": 1}, "assistant: as a whole: .*'more' was unexpected"),
        ({"stream": "nosuch"}, "there is no event nosuch"),
        ({"seq": 0}, "seq: 0 is less than the minimum"),
        ({"data": {"messageId": ID, "delta": "", "offset": 3}}, 'data/delta: "" is shorter than 1 character'),
        ({"data": {"messageId": ID, "phase": "replace"}}, "there is no event assistant:replace"),
        ({"data": {"messageId": ID, "phase": "reset", "text": ""}}, "data: .*'text' was unexpected"),
    ],
)
def test_a_fault_of_an_event_is_named(changed: dict[str, Any], fault: str) -> None:
    asked = expect("GET", f"{RUN}/events")
    asked.begun(200, STREAM)
    data = {"messageId": ID, "delta": "lo", "offset": 3}
    envelope = {"runId": ID, "seq": 3, "stream": "assistant", "ts": TIME, "data": data, **changed}
    if not fault:
        told(asked, envelope)
        return
    with pytest.raises(NotDescribed, match=f"followRun, GET .*event '3' .*{fault}"):
        told(asked, envelope)


def test_the_blocks_of_a_stream_that_was_read_whole_are_checked_too() -> None:
    asked = expect("GET", f"{RUN}/events")
    asked.begun(200, STREAM)
    with pytest.raises(NotDescribed, match="there is no event nosuch"):
        asked.body(b'id: 1\ndata: {"stream": "nosuch"}\n\n')
