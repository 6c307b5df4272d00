"""The guard in front of every route: request id, Host and Origin checks, cache headers. Plain ASGI, so streams pass.

Host and Origin are checked so that a web page cannot drive a loopback service, not even by a DNS name that it made
to point here. Pages of listed origins can; what they are told stands in `origins`.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.origins import Origins, is_preflight, preflight_response
from app.api.problems import problem_response, unexpected
from app.clock import Ids
from app.errors import BadHost, BadOrigin, FieldProblem, LanewayError

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class Guard:
    """Wraps the application."""

    def __init__(
        self, app: ASGIApp, ids: Ids, allowed_hosts: tuple[str, ...], allowed_origins: tuple[str, ...]
    ) -> None:
        self._app = app
        self._ids = ids
        self._hosts = frozenset(name.lower() for name in (*LOOPBACK_NAMES, *allowed_hosts))
        self._origins = Origins(allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _single_headers(scope)
        given = headers.get(b"x-request-id", b"")
        ident = given.decode() if _REQUEST_ID.fullmatch(given) else self._ids.new()
        scope.setdefault("state", {})["request_id"] = ident
        origin = headers.get(b"origin")
        extra = [(b"x-request-id", ident.encode()), *self._origins.headers(origin)]
        if scope["path"].startswith("/api"):
            extra.append((b"cache-control", b"no-store"))

        begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                _add_headers(message, extra)
            await send(message)

        if self._origins.has(origin) and is_preflight(scope["method"], headers):
            # Before the Host is looked at: the page could not read why the request behind it is refused.
            await preflight_response()(scope, receive, send_with_headers)
            return
        problem = self._refusal(headers)
        if problem is not None:
            await problem_response(problem, ident)(scope, receive, send_with_headers)
            return
        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            return  # nobody is there to be answered
        except Exception as failure:
            if begun:
                raise
            await unexpected(scope, failure)(scope, receive, send_with_headers)

    def _refusal(self, headers: dict[bytes, bytes]) -> LanewayError | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if _host_name(f"//{host}") not in self._hosts:
            return BadHost(
                "The Host header names a host that this service does not answer for; name it in server.allowed_hosts.",
                FieldProblem("not an allowed host", header="Host"),
            )
        origin = headers.get(b"origin")
        own = origin is None or origin.decode("latin-1").split("://", 1)[-1].lower() == host.lower()
        if not own and not self._origins.has(origin):
            return BadOrigin(
                "A web page of another origin may not call this service; name its origin in server.allowed_origins.",
                FieldProblem("must be the service's own origin or a listed one", header="Origin"),
            )
        return None


def _single_headers(scope: Scope) -> dict[bytes, bytes]:
    return dict(scope["headers"])


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _add_headers(message: MutableMapping[str, Any], extra: list[tuple[bytes, bytes]]) -> None:
    there = {name.lower() for name, _ in message["headers"]}
    added = ((name, value) for name, value in extra if name not in there or name == b"vary")
    message["headers"] = [*message["headers"], *added]
