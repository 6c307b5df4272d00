"""Connections to public addresses alone: names are resolved here, each address is judged, and the judged one dialled.

So neither a name that points inward, nor one that answers differently the second time, nor a redirect gets a connection
to a private network. The operator's own hosts can be let through by name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
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
        "0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15",
        "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "::/96", "100::/64", "2001::/23", "2001:db8::/32",
        "3fff::/20", "5f00::/16", "fec0::/10",
    )
)  # fmt: skip
"""Beside what `is_global` knows: special purposes of the registries, whatever a Python version holds them to be."""

_NAT64 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
_SIX_TO_FOUR = ipaddress.ip_network("2002::/16")


class NotPublic(ToolFailed):
    """The address is one that this service must not reach out to."""


def is_public(address: Address) -> bool:
    """Whether an address, and every address that is packed into it, belongs to the open internet."""
    packed = _packed(address)
    if packed is not None:
        return is_public(packed)
    if not address.is_global or address.is_multicast or address.is_reserved or address.is_unspecified:
        return False
    return not any(address.version == net.version and address in net for net in _NOT_PUBLIC)


def _packed(address: Address) -> ipaddress.IPv4Address | None:
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _SIX_TO_FOUR:
        return ipaddress.IPv4Address(address.packed[2:6])
    if any(address in net for net in _NAT64):
        return ipaddress.IPv4Address(address.packed[12:])
    return None


async def resolve(host: str, port: int) -> Sequence[str]:
    """By the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(item[4][0]) for item in found))


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Dials for httpx. `allowed` are `host` or `host:port` that may lie anywhere."""

    def __init__(self, allowed: Iterable[str], find: Resolve = resolve) -> None:
        self._allowed = frozenset(item.lower() for item in allowed)
        self._find = find
        self._dial = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the form that httpcore asks for
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises NotPublic, httpcore.ConnectError, httpcore.ConnectTimeout."""
        free = host.lower() in self._allowed or f"{host.lower()}:{port}" in self._allowed
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

    async def _addresses(self, host: str, port: int) -> list[Address]:
        try:
            async with asyncio.timeout(RESOLVE_WITHIN_S):
                found = await self._find(host, port)
        except TimeoutError:
            raise httpcore.ConnectTimeout("the name was not resolved in time") from None
        except (OSError, UnicodeError):
            raise ToolFailed(f"{host[:200]}: there is no host of this name.") from None
        return [ipaddress.ip_address(text.partition("%")[0]) for text in found]

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        """Never."""
        raise NotPublic("Sockets of this machine are not fetched.")

    async def sleep(self, seconds: float) -> None:
        """Between attempts of httpcore, which makes none here."""
        await asyncio.sleep(seconds)


class GuardedTransport(httpx.AsyncHTTPTransport):
    """httpx's own transport, dialling through the guard. Proxies of the environment are not used."""

    def __init__(self, backend: GuardedBackend) -> None:
        super().__init__(trust_env=False, retries=0)
        pool = self._pool
        assert isinstance(pool, httpcore.AsyncConnectionPool)
        pool._network_backend = backend
