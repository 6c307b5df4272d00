"""Connections to public addresses alone: names are resolved here, each address is judged, and the judged one dialled.

So neither a name that points inward, nor one that answers differently the second time, nor a redirect gets a connection
to a private network. The operator's own hosts can be let through by name. What a URL may look like is `web_fetch`'s.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

import httpcore
import httpx

from app.tools.contract import ToolFailed

CONNECT_WITHIN_S = 10.0
RESOLVE_WITHIN_S = 5.0
ADDRESSES_MAX = 8

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Addresses of a host name, as text. Raises OSError."""

_NOT_PUBLIC = tuple(
    ipaddress.ip_network(net)
    for net in (
        "0.0.0.0/8", "100.64.0.0/10", "168.63.129.16/32", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "::/96", "64:ff9b:1::/48", "100::/64",
        "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16", "fec0::/10",
    )
)  # fmt: skip
"""Beside what `is_global` knows: special purposes of the registries, whatever a Python version holds them to be, and
the one address at which a cloud answers its own machines although it looks public."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_SIX_TO_FOUR = ipaddress.ip_network("2002::/16")
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")


class NotPublic(ToolFailed):
    """The address is one that this service must not reach out to."""


def is_public(address: Address) -> bool:
    """Whether an address, and every address that is packed into it, belongs to the open internet."""
    if isinstance(address, ipaddress.IPv6Address):
        last = ipaddress.IPv4Address(address.packed[12:])
        if address.ipv4_mapped is not None or address in _NAT64:
            return is_public(last)
        if address in _SIX_TO_FOUR and not is_public(ipaddress.IPv4Address(address.packed[2:6])):
            return False
        if address.packed[8:12] in _ISATAP and not is_public(last):
            return False
    if not address.is_global or address.is_multicast or address.is_reserved or address.is_unspecified:
        return False
    return not any(address.version == net.version and address in net for net in _NOT_PUBLIC)


async def resolve(host: str, port: int) -> Sequence[str]:
    """By the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(item[4][0]) for item in found))


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Dials for httpcore, by `dial`. `allowed` are `host` or `host:port` that may lie anywhere."""

    def __init__(
        self, allowed: Iterable[str], find: Resolve = resolve, dial: httpcore.AsyncNetworkBackend | None = None
    ) -> None:
        self._allowed = frozenset(item.lower() for item in allowed)
        self._find = find
        self._dial = dial or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the form that httpcore asks for
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises NotPublic, ToolFailed, httpcore.ConnectError, httpcore.ConnectTimeout."""
        free = self._is_free(host.lower(), port)
        addresses = await self._addresses(host, port)
        if not free and not all(is_public(address) for address in addresses):
            raise NotPublic(f"{host[:200]} has an address that is not public, so it is not fetched.")
        problem: Exception = httpcore.ConnectError("no address")
        for address in addresses[:ADDRESSES_MAX]:
            try:
                stream = await self._dial.connect_tcp(
                    str(address),
                    port,
                    min(timeout or CONNECT_WITHIN_S, CONNECT_WITHIN_S),
                    local_address,
                    socket_options,
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failed:
                problem = failed
                continue
            peer = stream.get_extra_info("server_addr")
            if not free and not (peer and is_public(ipaddress.ip_address(str(peer[0]).partition("%")[0]))):
                await stream.aclose()
                raise NotPublic(f"{host[:200]} led to an address that is not public, so it is not fetched.")
            return stream
        raise problem

    def _is_free(self, host: str, port: int) -> bool:
        names = {host, f"[{host}]"} if ":" in host else {host}
        return any(name in self._allowed or f"{name}:{port}" in self._allowed for name in names)

    async def _addresses(self, host: str, port: int) -> list[Address]:
        try:
            async with asyncio.timeout(RESOLVE_WITHIN_S):
                found = await self._find(host, port)
        except TimeoutError:
            raise ToolFailed(f"{host[:200]}: its name was not resolved within {RESOLVE_WITHIN_S:g} s.") from None
        except (OSError, UnicodeError):
            raise ToolFailed(f"{host[:200]}: there is no host of this name.") from None
        return [ipaddress.ip_address(text.partition("%")[0]) for text in found]

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        """Never."""
        raise NotPublic("Sockets of this machine are not fetched.")

    async def sleep(self, seconds: float) -> None:
        """Between attempts of httpcore, which makes none here."""
        await asyncio.sleep(seconds)


class GuardedTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1 for httpx, dialling through the guard: no proxy, no retry. Raises what httpcore and the guard raise.

    httpx's own transport takes no backend, and one that is set behind its back would be lost without a word if a name
    in it changed.
    """

    def __init__(self, backend: GuardedBackend, tls: ssl.SSLContext) -> None:
        self._pool = httpcore.AsyncConnectionPool(ssl_context=tls, network_backend=backend, retries=0)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The answer, its body still to be read."""
        url = httpcore.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        answer = await self._pool.handle_async_request(
            httpcore.Request(request.method, url, headers=request.headers.raw, extensions=request.extensions)
        )
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Body(answer), extensions=dict(answer.extensions)
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Body(httpx.AsyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._answer.aiter_stream():
            yield piece

    async def aclose(self) -> None:
        await self._answer.aclose()
