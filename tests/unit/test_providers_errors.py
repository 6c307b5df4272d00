"""What failed calls are called: by status and body, by exception, and never with the provider's own words or a key."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from app.providers.contract import ProviderErrorCode
from app.providers.errors import RETRY_AFTER_MAX_S, from_exception, from_payload, from_status
from tests.kit.model_server import ModelServer
from tests.kit.steps import delay_headers, error, pause, reply_text, text
from tests.unit.test_providers_support import KEY, ByteServer, provider_at, tell

NOW_MS = 1_790_000_000_000  # 2026-09-21T14:13:20Z
CONTEXT = "This model's maximum context length is 8192 tokens. Please reduce the length of the messages."


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "provider-refused", False),
        (401, "provider-auth", False),
        (402, "provider-refused", False),
        (403, "provider-auth", False),
        (404, "model-not-found", False),
        (408, "provider-timeout", True),
        (409, "provider-refused", False),
        (413, "provider-refused", False),
        (422, "provider-refused", False),
        (429, "provider-rate-limited", True),
        (500, "provider-error", True),
        (502, "provider-error", True),
        (503, "provider-overloaded", True),
        (504, "provider-timeout", True),
        (529, "provider-overloaded", True),
        (302, "provider-bad-response", False),
    ],
)
async def test_statuses(model: ModelServer, status: int, code: str, retryable: bool) -> None:
    model.script(error(status, f"secret words about {KEY}", fields={"location": "http://127.0.0.1:1/elsewhere?key=1"}))
    async with provider_at(model.base_url) as provider:
        told = await tell(provider)
    failure = told.failed(code)
    assert (failure.retryable, failure.status) == (retryable, status)
    assert "secret" not in str(failure)
    assert "127.0.0.1" not in str(failure)
    assert str(failure).startswith("local ")
    assert str(status) in str(failure)
    assert len(model.requests) == 1, "a call is asked once"


async def test_a_bare_body_and_an_empty_one() -> None:
    for body in (b"", b"<html>no</html>", b"\xff\xfe", b"[]", b"[1", b'"text"', b"null", b"[" * 100_000):
        failure = from_status("local", 500, {}, body, now_ms=NOW_MS)
        assert failure.code == "provider-error"
        assert len(str(failure)) < 100


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (400, {"error": {"message": CONTEXT, "code": "context_length_exceeded"}}, "context-overflow"),
        (400, {"error": {"message": CONTEXT}}, "context-overflow"),
        (413, {"error": {"message": "prompt is too long: 250000 tokens > 200000 maximum"}}, "context-overflow"),
        (400, {"error": {"message": "the request exceeds the available context size"}}, "context-overflow"),
        (400, {"error": {"message": "no", "type": "exceed_context_size_error"}}, "context-overflow"),
        (400, {"message": "Input is too long for requested model."}, "context-overflow"),
        (400, [{"error": {"message": "The input token count exceeds the maximum number of tokens allowed"}}],
         "context-overflow"),
        (400, {"error": {"message": "no", "code": "model_not_found"}}, "model-not-found"),
        (400, {"error": {"message": "no", "code": "invalid_api_key"}}, "provider-auth"),
        (400, {"error": "model does not support tools"}, "provider-refused"),
        (403, {"error": {"message": CONTEXT}}, "provider-auth"),
        (500, {"error": {"message": CONTEXT}}, "provider-error"),
        (429, {"error": {"message": "too many tokens per minute"}}, "provider-rate-limited"),
    ],
)  # fmt: skip
def test_bodies(status: int, body: Any, code: str) -> None:
    failure = from_status("local", status, {}, orjson.dumps(body), now_ms=NOW_MS)
    assert failure.code == code
    assert not any(word in str(failure) for word in ("Please", "maximum number", "requested model"))


def test_a_used_up_quota_is_not_worth_a_retry() -> None:
    body = orjson.dumps({"error": {"message": "pay", "type": "insufficient_quota", "code": "insufficient_quota"}})
    failure = from_status("local", 429, {"retry-after": "1"}, body, now_ms=NOW_MS)
    assert failure.code == "provider-rate-limited"
    assert not failure.retryable
    assert "quota" in str(failure)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "Mon, 21 Sep 2026 14:13:50 GMT"}, 30.0),
        ({"retry-after": "Mon, 21 Sep 2026 14:13:50 -0000"}, 30.0),
        ({"retry-after": "Mon, 21 Sep 2026 14:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "86400"}, 86_400.0),
        ({"retry-after": "9e99"}, RETRY_AFTER_MAX_S),
        ({"retry-after-ms": "1500", "retry-after": "60"}, 1.5),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert from_status("local", 429, headers, b"", now_ms=NOW_MS).retry_after_s == seconds


async def test_retry_after_comes_through(model: ModelServer) -> None:
    model.script(error(429, fields={"Retry-After": "7"}))
    async with provider_at(model.base_url) as provider:
        assert (await tell(provider)).failed("provider-rate-limited").retry_after_s == 7.0


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"code": "rate_limit_exceeded"}, "provider-rate-limited"),
        ({"type": "authentication_error"}, "provider-auth"),
        ({"type": "permission_error"}, "provider-auth"),
        ({"type": "not_found_error"}, "model-not-found"),
        ({"type": "invalid_request_error"}, "provider-refused"),
        ({"type": "timeout_error"}, "provider-timeout"),
        ({"type": "api_error"}, "provider-error"),
        ({"code": "503"}, "provider-overloaded"),
        ({"code": 200}, "provider-error"),
        ({}, "provider-error"),
        (None, "provider-error"),
        (["x"], "provider-error"),
        ({"code": {"x": 1}, "message": 5}, "provider-error"),
    ],
)
def test_error_objects_in_a_stream(payload: Any, code: ProviderErrorCode) -> None:
    assert from_payload("local", payload).code == code


# the network


async def test_a_refused_connection(model: ModelServer) -> None:
    async with ByteServer([]).running() as server:
        url = server.url
    async with provider_at(url) as provider:
        failure = (await tell(provider)).failed("provider-unreachable")
    assert failure.retryable
    assert "refused" in str(failure)


async def test_a_refused_connection_by_name() -> None:
    async with ByteServer([]).running() as server:
        port = server.port
    async with provider_at(f"http://localhost:{port}") as provider:
        assert "refused" in str((await tell(provider)).failed("provider-unreachable"))


async def test_a_host_that_is_not_known() -> None:
    async with provider_at("http://no-such-host.invalid/v1?key=hidden") as provider:
        failure = (await tell(provider)).failed("provider-unreachable")
    assert failure.retryable
    assert "host name" in str(failure)
    assert "hidden" not in str(failure)


async def test_tls_to_a_server_without_it() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, provider_at(url) as provider:
        failure = (await tell(provider)).failed("provider-unreachable")
    assert not failure.retryable
    assert "https" in str(failure)


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate that nobody signed, and its key."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


async def test_a_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*_certificate(tmp_path))
    async with ByteServer([]).running(tls) as server, provider_at(f"https://127.0.0.1:{server.port}") as provider:
        failure = (await tell(provider)).failed("provider-unreachable")
    assert not failure.retryable
    assert "certificate" in str(failure)


async def test_a_connection_that_closes_before_an_answer() -> None:
    async with ByteServer([]).running() as server, provider_at(server.url) as provider:
        assert (await tell(provider)).failed("provider-unreachable").retryable
        assert len(server.requests) == 1


async def test_an_answer_that_is_no_http() -> None:
    async with ByteServer([b"SSH-2.0-OpenSSH\r\n"]).running() as server, provider_at(server.url) as provider:
        assert (await tell(provider)).failed("provider-unreachable").retryable


async def test_a_silent_provider_meets_the_transports_limit_last(
    model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.providers.client.READ_SLACK_S", 0.3)
    model.script([text("x"), pause(30)])
    async with provider_at(model.base_url, timeout_seconds=0.2) as provider:
        told = await tell(provider)
    assert told.text == "x"
    assert told.failed("provider-timeout").retryable
    assert 0.5 <= told.seconds < 2


async def test_no_hidden_limit_below_the_idle_time(model: ModelServer) -> None:
    """Longer than the five seconds that the HTTP client has by default."""
    model.script([delay_headers(6), *reply_text("late", deltas=1)])
    async with provider_at(model.base_url) as provider:
        told = await tell(provider)
    assert told.text == "late"
    assert told.seconds >= 6
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("error_type", "code"),
    [
        (httpx2.ConnectTimeout, "provider-unreachable"),
        (httpx2.ReadTimeout, "provider-timeout"),
        (httpx2.WriteTimeout, "provider-timeout"),
        (httpx2.PoolTimeout, "provider-timeout"),
        (httpx2.ReadError, "provider-unreachable"),
        (httpx2.RemoteProtocolError, "provider-unreachable"),
        (httpx2.ProxyError, "provider-unreachable"),
    ],
)
def test_exceptions_of_the_http_client(error_type: type[httpx2.TransportError], code: str) -> None:
    wrapped = RuntimeError(KEY)
    wrapped.__cause__ = error_type(f"about {KEY}")
    failure = from_exception("local", wrapped, now_ms=NOW_MS)
    assert failure.code == code
    assert failure.retryable
    assert KEY not in str(failure)


def test_an_exception_that_nobody_knows() -> None:
    failure = from_exception("local", ValueError(KEY), now_ms=NOW_MS)
    assert failure.code == "provider-bad-response"
    assert KEY not in str(failure)
    assert "ValueError" in str(failure)


async def test_an_error_drags_no_cause_into_the_log(model: ModelServer) -> None:
    """A vendor's exception holds the request and the body that came back."""
    async with ByteServer([]).running() as server:
        url = server.url
    async with provider_at(url) as provider:
        failure = (await tell(provider)).failed("provider-unreachable")
    assert failure.__cause__ is None
    assert failure.__suppress_context__
