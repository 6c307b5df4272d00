"""Pages of other origins: what is told to those that are listed. Browsers keep them from all that is not told."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.responses import Response

ALLOWED_METHODS = "GET, POST"
ALLOWED_HEADERS = "Authorization, Content-Type, Idempotency-Key, If-Match, Last-Event-ID, Prefer, X-Request-Id"
EXPOSED_HEADERS = "ETag, Idempotent-Replayed, Location, Preference-Applied, Retry-After, X-Request-Id"
PREFLIGHT_S = 600
"""How long a browser need not ask again."""

_EXPOSE = (b"access-control-expose-headers", EXPOSED_HEADERS.encode())
_VARY = (b"vary", b"Origin")


class Origins:
    """The listed ones. With none, nothing is said of origins at all."""

    def __init__(self, listed: Iterable[str]) -> None:
        self._listed = frozenset(origin.encode() for origin in listed)

    def has(self, origin: bytes | None) -> bool:
        """Whether a page of this origin may call."""
        return origin is not None and origin.lower() in self._listed

    def headers(self, origin: bytes | None) -> list[tuple[bytes, bytes]]:
        """What every answer to it carries, refusals included: a page can read no other."""
        if not self._listed:
            return []
        if origin is None or not self.has(origin):
            return [_VARY]
        return [_VARY, (b"access-control-allow-origin", origin), _EXPOSE]


def is_preflight(method: str, headers: dict[bytes, bytes]) -> bool:
    """Whether a browser asks what a page may send, before it sends it."""
    return method == "OPTIONS" and b"access-control-request-method" in headers


def preflight_response() -> Response:
    """All that may be sent, whatever was asked for: the browser compares."""
    headers = {
        "Access-Control-Allow-Methods": ALLOWED_METHODS,
        "Access-Control-Allow-Headers": ALLOWED_HEADERS,
        "Access-Control-Max-Age": str(PREFLIGHT_S),
    }
    return Response(status_code=204, headers=headers)
