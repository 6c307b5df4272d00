"""What a failed model call means: HTTP answers, error objects inside a stream and exceptions become ProviderError.

The texts are ours. A provider's own words are read to classify a failure and never repeated: they may hold keys,
prompts and addresses.
"""

from __future__ import annotations

import math
import re
import ssl
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
import orjson
from pydantic_ai.exceptions import ModelHTTPError

from app.providers.contract import ProviderError, ProviderErrorCode

RETRY_AFTER_MAX_S = 30 * 86_400.0
"""A longer floor is a broken clock on the other side."""

_CONTEXT = re.compile(
    r"context[_ ](?:length|window|size)|maximum context|prompt is too long|input is too long|too many (?:input )?tokens"
    r"|input token count|exceeds? the (?:model's )?(?:maximum|available) (?:context|tokens|number of tokens)"
    r"|reduce the length|exceed_context"
)
_QUOTA = re.compile(r"insufficient_quota|exceeded_current_quota|billing|credit_balance|spend_limit|usage_limit")

_RETRYABLE: frozenset[ProviderErrorCode] = frozenset({
    "provider-error", "provider-rate-limited", "provider-overloaded", "provider-unreachable", "provider-timeout",
    "provider-bad-response",
})  # fmt: skip

_BY_STATUS: dict[int, ProviderErrorCode] = {
    401: "provider-auth",
    403: "provider-auth",
    404: "model-not-found",
    408: "provider-timeout",
    429: "provider-rate-limited",
    503: "provider-overloaded",
    504: "provider-timeout",
    529: "provider-overloaded",
}

_BY_WORD: tuple[tuple[str, ProviderErrorCode], ...] = (
    ("model_not_found", "model-not-found"),
    ("invalid_api_key", "provider-auth"),
    ("authentication", "provider-auth"),
    ("permission", "provider-auth"),
    ("rate_limit", "provider-rate-limited"),
    ("too_many_requests", "provider-rate-limited"),
    ("overloaded", "provider-overloaded"),
    ("unavailable", "provider-overloaded"),
    ("timeout", "provider-timeout"),
    ("not_found", "model-not-found"),
    ("invalid_request", "provider-refused"),
)
"""By the code or type of an error object, the first that fits."""

_REASONS: dict[ProviderErrorCode, str] = {
    "provider-error": "failed on its side",
    "provider-auth": "did not accept the API key; check providers.{provider}.api_key",
    "provider-rate-limited": "has had too many requests from this key",
    "provider-overloaded": "is overloaded or down for now",
    "provider-timeout": "gave up waiting for the model",
    "provider-refused": "refused the request",
    "model-not-found": "does not know the model or the address; check its name and providers.{provider}.base_url",
    "context-overflow": "says that the conversation is longer than the model's context",
}


def bad_response(provider: str, what: str, *, retryable: bool = True) -> ProviderError:
    """An answer that is not what the protocol says. `what` follows the provider's name."""
    return ProviderError("provider-bad-response", f"{provider} {what}", retryable=retryable)


def from_status(provider: str, status: int, headers: Mapping[str, str], body: bytes, *, now_ms: int) -> ProviderError:
    """The error of an HTTP answer that is no success. `body` may be cut or anything at all."""
    if status < 400:
        text = f"{provider} answered HTTP {status} instead of a stream; check providers.{provider}.base_url"
        return ProviderError("provider-bad-response", text, status=status)
    return _error(provider, status, _parsed(body), retry_after_s=_retry_after_s(headers, now_ms))


def from_payload(provider: str, payload: object) -> ProviderError:
    """The error of an error object that came inside a stream that began well."""
    return _error(provider, _status_in(payload), payload, retry_after_s=None)


def from_exception(provider: str, error: BaseException, *, now_ms: int) -> ProviderError:
    """The error of whatever the model layer, a vendor's SDK or the HTTP client raised."""
    for cause in _chain(error):
        if isinstance(cause, ProviderError):
            return cause
    for cause in _chain(error):
        if isinstance(cause, httpx2.TransportError):
            return _from_transport(provider, cause)
        if isinstance(cause, ModelHTTPError):
            return _error(provider, cause.status_code, cause.body, retry_after_s=None)
    return bad_response(provider, f"sent an answer that could not be read ({type(error).__name__})")


def _error(provider: str, status: int | None, body: object, *, retry_after_s: float | None) -> ProviderError:
    code, quota = _code(status, _words(body))
    reason = _REASONS[code].format(provider=provider)
    if quota:
        reason = "says that the account's quota or credit is used up"
    elif status == 402:
        reason = "asks for payment"
    known_status = f" (HTTP {status})" if status is not None else ""
    return ProviderError(
        code,
        f"{provider} {reason}{known_status}",
        retryable=code in _RETRYABLE and not quota,
        retry_after_s=retry_after_s,
        status=status,
    )


def _code(status: int | None, words: tuple[str, str]) -> tuple[ProviderErrorCode, bool]:
    """The code, and whether the reason is a used-up quota, for which waiting does not help."""
    named, said = words
    if _QUOTA.search(named):
        return "provider-rate-limited", True
    if status in (None, 400, 413, 422) and (_CONTEXT.search(named) or _CONTEXT.search(said)):
        return "context-overflow", False
    if status in _BY_STATUS:
        return _BY_STATUS[status], False
    if status is None or status == 400:
        for word, code in _BY_WORD:
            if word in named:
                return code, False
    if status is not None and status < 500:
        return "provider-refused", False
    return "provider-error", False


def _words(body: object) -> tuple[str, str]:
    """What an error object is called (code, type), and what it says, in lower case."""
    if isinstance(body, dict) and isinstance(body.get("error"), dict | str):
        body = body["error"]
    if isinstance(body, dict):
        named = " ".join(str(body[key]) for key in ("code", "type", "status") if body.get(key) is not None)
        return named.lower().replace(" ", "_"), str(body.get("message", ""))[:4000].lower()
    return "", str(body)[:4000].lower() if isinstance(body, str) else ""


def _status_in(payload: object) -> int | None:
    """Gateways put the HTTP status that the error would have had into its code."""
    if not isinstance(payload, dict):
        return None
    for key in ("code", "status"):
        value: Any = payload.get(key)
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, int) and 400 <= value < 600:
            return value
    return None


def _parsed(body: bytes) -> object:
    try:
        parsed: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace")
    return parsed[0] if isinstance(parsed, list) and parsed else parsed


def _retry_after_s(headers: Mapping[str, str], now_ms: int) -> float | None:
    """Seconds from `retry-after-ms` or `retry-after`, which is a number of seconds or an HTTP date."""
    seconds = _number(headers.get("retry-after-ms"))
    if seconds is not None:
        seconds /= 1000
    else:
        written = headers.get("retry-after")
        seconds = _number(written)
        if seconds is None and written:
            seconds = _seconds_until(written, now_ms)
    return None if seconds is None else min(max(seconds, 0.0), RETRY_AFTER_MAX_S)


def _number(written: str | None) -> float | None:
    try:
        value = float(written or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _seconds_until(date: str, now_ms: int) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.timestamp() - now_ms / 1000


def _from_transport(provider: str, error: httpx2.TransportError) -> ProviderError:
    match error:
        case httpx2.ConnectTimeout():
            return _unreachable(provider, "the connection was not accepted in time")
        case httpx2.PoolTimeout():
            return ProviderError("provider-timeout", f"{provider}: all connections are in use", retryable=True)
        case httpx2.TimeoutException():
            return ProviderError("provider-timeout", f"{provider} sent nothing for too long", retryable=True)
        case httpx2.ConnectError():
            return _unconnected(provider, error)
        case httpx2.ProxyError():
            return _unreachable(provider, "the proxy refused")
        case httpx2.UnsupportedProtocol():
            return _unreachable(provider, "base_url must begin with http:// or https://", retryable=False)
    return _unreachable(provider, "the connection broke before an answer came")


def _unconnected(provider: str, error: httpx2.ConnectError) -> ProviderError:
    for cause in _chain(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _unreachable(provider, "its TLS certificate is not trusted", retryable=False)
        if isinstance(cause, ssl.SSLError):
            return _unreachable(provider, "TLS failed; is base_url really https?", retryable=False)
        if isinstance(cause, OSError) and type(cause).__name__ == "gaierror":
            return _unreachable(provider, "its host name was not found")
        if isinstance(cause, ConnectionRefusedError):
            return _unreachable(provider, "the connection was refused; is it running?")
    return _unreachable(provider, "no connection")


def _unreachable(provider: str, why: str, *, retryable: bool = True) -> ProviderError:
    return ProviderError("provider-unreachable", f"{provider} cannot be reached: {why}", retryable=retryable)


def _chain(error: BaseException) -> list[BaseException]:
    """The exception and everything it was raised from or while handling, outermost first, groups opened."""
    found: list[BaseException] = []
    waiting: list[BaseException] = [error]
    while waiting:
        current = waiting.pop(0)
        if any(current is seen for seen in found):
            continue
        found.append(current)
        inner = current.exceptions if isinstance(current, BaseExceptionGroup) else ()
        waiting += [cause for cause in (current.__cause__, current.__context__, *inner) if cause is not None]
    return found
