"""The HTTP client of one provider: bounded, without retries and redirects, and with no limit below the idle time."""

from __future__ import annotations

import ssl
import urllib.request
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import httpx2

from app.clock import Clock
from app.providers.endpoint import Endpoint, host_of, is_local
from app.providers.transport import CleanTransport, Dialect

CONNECT_S: Final = 10.0
READ_SLACK_S: Final = 5.0
"""Added to the idle time for the transport's own limit, so that the watchdog speaks first."""

CONNECTIONS_MAX: Final = 256
CONNECTIONS_KEPT: Final = 32
KEPT_S: Final = 30.0
"""Calls of one provider at once, connections kept ready between calls, and for how long."""


def client(endpoint: Endpoint, dialect: Callable[[], Dialect], tls: ssl.SSLContext, clock: Clock) -> httpx2.AsyncClient:
    """A client for all models of the endpoint."""
    limits = httpx2.Limits(
        max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_KEPT, keepalive_expiry=KEPT_S
    )
    proxy = _proxy(endpoint.base_url)
    return over(
        httpx2.AsyncHTTPTransport(verify=tls, limits=limits, proxy=proxy, trust_env=False), endpoint, dialect, clock
    )


def over(
    transport: httpx2.AsyncBaseTransport, endpoint: Endpoint, dialect: Callable[[], Dialect], clock: Clock
) -> httpx2.AsyncClient:
    """A client that cleans what comes over the transport."""
    return httpx2.AsyncClient(
        transport=CleanTransport(transport, endpoint.provider, dialect, clock, has_key=bool(endpoint.api_key)),
        timeout=timeout(endpoint),
        # An encoded stream would be held back by its encoder.
        headers={"accept-encoding": "identity"},
        follow_redirects=False,
        trust_env=False,
    )


def timeout(endpoint: Endpoint) -> httpx2.Timeout:
    """The limits of one call, for the client and for the SDK above it."""
    return httpx2.Timeout(endpoint.idle_s + READ_SLACK_S, connect=min(CONNECT_S, endpoint.idle_s))


def _proxy(base_url: str) -> str | None:
    """The proxy of the environment for this address; none for a machine of one's own."""
    host, scheme = host_of(base_url), urlsplit(base_url).scheme
    if is_local(host) or urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(scheme) or proxies.get("all")
