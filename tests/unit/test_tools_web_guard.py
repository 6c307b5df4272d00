"""No connection to an address that is not public, however it is written, resolved or reached."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any

import httpcore
import pytest

from app.tools.contract import ToolFailed
from app.tools.web_fetch import checked
from app.tools.web_guard import GuardedBackend, NotPublic, is_public

PUBLIC = "93.184.216.34"
OTHER = "1.1.1.1"


class Dial(httpcore.AsyncNetworkBackend):
    """Connects to nothing. Counts who was called; `peer` is who is said to have answered, `deaf` do not."""

    def __init__(self, peer: str | None = None, deaf: Sequence[str] = ()) -> None:
        self.called: list[str] = []
        self.closed = 0
        self._peer = peer
        self._deaf = deaf

    async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        self.called.append(host)
        if host in self._deaf:
            raise httpcore.ConnectError("refused")
        return Line(self, (self._peer or host, port))


class Line(httpcore.AsyncNetworkStream):
    def __init__(self, dial: Dial, peer: tuple[str, int]) -> None:
        self._dial = dial
        self._peer = peer

    async def aclose(self) -> None:
        self._dial.closed += 1

    def get_extra_info(self, info: str) -> Any:
        return self._peer if info == "server_addr" else None


class Names:
    """A resolver whose answers change from one call to the next; the last one stays."""

    def __init__(self, *answers: Iterable[str]) -> None:
        self._answers = [list(answer) for answer in answers]
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254",
        "168.63.129.16", "169.254.1.1", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.9", "192.0.0.192",
        "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1",
        "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
        "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::101:101", "100::1", "2001::1", "2001:0:7f00:1::",
        "2001:2::1", "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:c0a8:101::1", "2002:a9fe:a9fe::",
        "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fd12:3456::1", "fe80::1", "fec0::1", "ff02::1",
        "2607:f8b0::5efe:10.0.0.1", "2607:f8b0::200:5efe:127.0.0.1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        PUBLIC, OTHER, "8.8.8.8", "11.0.0.1", "100.63.255.255", "100.128.0.1", "126.255.255.255", "128.0.0.1",
        "172.15.0.1", "172.32.0.1", "192.0.1.1", "192.167.0.1", "198.17.0.1", "198.20.0.1", "223.255.255.255",
        "2606:4700:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1",
        "2607:f8b0::5efe:8.8.8.8",
    ],
)  # fmt: skip
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


async def test_the_address_that_was_judged_is_the_one_that_is_dialled() -> None:
    names, dial = Names([PUBLIC], ["127.0.0.1"]), Dial()
    await GuardedBackend((), names, dial).connect_tcp("rebound.test", 80)
    assert (dial.called, len(names.asked)) == ([PUBLIC], 1)


@pytest.mark.parametrize("answer", [["10.0.0.1"], [PUBLIC, "10.0.0.1"], ["::1", PUBLIC], ["fe80::1%eth0"]])
async def test_one_address_that_is_not_public_is_enough_to_dial_none(answer: list[str]) -> None:
    dial = Dial()
    with pytest.raises(NotPublic) as refused:
        await GuardedBackend((), Names(answer), dial).connect_tcp("inward.test", 80)
    assert dial.called == []
    assert "inward.test" in str(refused.value)
    assert not any(address.partition("%")[0] in str(refused.value) for address in answer)


async def test_who_answers_is_judged_too() -> None:
    dial = Dial(peer="127.0.0.1")
    with pytest.raises(NotPublic):
        await GuardedBackend((), Names([PUBLIC]), dial).connect_tcp("led-astray.test", 80)
    assert dial.closed == 1


async def test_the_next_address_is_dialled_when_one_does_not_answer() -> None:
    dial = Dial(deaf=[PUBLIC])
    await GuardedBackend((), Names([PUBLIC, OTHER]), dial).connect_tcp("two.test", 80)
    assert dial.called == [PUBLIC, OTHER]


async def test_no_more_than_eight_addresses_are_dialled() -> None:
    many = [f"1.1.1.{number}" for number in range(1, 100)]
    dial = Dial(deaf=many)
    with pytest.raises(httpcore.ConnectError):
        await GuardedBackend((), Names(many), dial).connect_tcp("many.test", 80)
    assert dial.called == many[:8]


async def test_a_name_without_addresses_is_no_connection() -> None:
    with pytest.raises(httpcore.ConnectError):
        await GuardedBackend((), Names([]), Dial()).connect_tcp("none.test", 80)


@pytest.mark.parametrize(
    ("allowed", "host", "port"),
    [
        ("own.test", "own.test", 80),
        ("Own.Test", "own.test", 1234),
        ("own.test:8080", "OWN.test", 8080),
        ("::1", "::1", 80),
        ("[::1]:8080", "::1", 8080),
        ("127.0.0.1:9", "127.0.0.1", 9),
    ],
)
async def test_what_the_operator_allows_may_lie_anywhere(allowed: str, host: str, port: int) -> None:
    dial = Dial()
    await GuardedBackend((allowed,), Names(["127.0.0.1"]), dial).connect_tcp(host, port)
    assert dial.called == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("allowed", "host", "port"),
    [
        ("own.test:8080", "own.test", 8081),
        ("own.test", "sub.own.test", 80),
        ("own.test", "own.test.", 80),
        ("own.test", "xown.test", 80),
        ("", "own.test", 80),
        ("*", "own.test", 80),
        ("127.0.0.1", "localhost", 80),
    ],
)
async def test_and_nothing_but_that(allowed: str, host: str, port: int) -> None:
    dial = Dial()
    with pytest.raises(NotPublic):
        await GuardedBackend((allowed,), Names(["127.0.0.1"]), dial).connect_tcp(host, port)
    assert dial.called == []


async def test_a_name_that_is_not_found_is_told_as_such() -> None:
    async def find(host: str, port: int) -> Sequence[str]:
        raise OSError("no address for 10.1.2.3")

    with pytest.raises(ToolFailed, match=r"^gone\.test: there is no host of this name\.$"):
        await GuardedBackend((), find, Dial()).connect_tcp("gone.test", 80)


async def test_sockets_of_the_machine_are_never_opened() -> None:
    with pytest.raises(NotPublic):
        await GuardedBackend(()).connect_unix_socket("/run/x.sock")


ODD = [
    "http://2130706433/", "http://017700000001/", "http://0x7f000001/", "http://0x7f.1/", "http://127.1/",
    "http://127.0.1/", "http://0177.0.0.1/", "http://127.0.0.01/", "http://0x7f.0.0.0x1/", "http://127.0.0.1./",
    "http://127.0.0.1.5/", "http://0/", "http://localhost./", "http://localhost.:80/", "http://example.com./",
    "http://%6c%6fcalhost/", "http://127%2e0%2e0%2e1/", "http://127.0.0.1%00.example.com/", "http://[fe80::1%25eth0]/",
    "http://[::1/", "http://::1/", "http://[::ffff:127.0.0.1%31]/", "http://[v1.x]/",
    "http://\uff11\uff12\uff17.0.0.1/", "http://\u2460\u2461\u2466.0.0.1/", "http://127\u30020\u30020\u30021/",
    "http://\u24db\u24de\u24d2\u24d0\u24db\u24d7\u24de\u24e2\u24e3/", "http://ex\u00e4mple.com/", "http://lo\u00adcalhost/",
    "http://a@127.0.0.1/", "http://a:b@example.com/", "http://example.com@127.0.0.1/", "http://@example.com/",
    "http://example.com\\@127.0.0.1/", "http:\\\\127.0.0.1/", "http:///127.0.0.1/", "http:127.0.0.1", "http://",
    "http://exa mple.com/", "http://example.com/\n", "http://exam\tple.com/", "http://example.com:0/", "//example.com/",
    "http://example.com:99999/", "http://example.com:x/", "http://example.com:8\u0660/", "http://-/", "http://.../",
    "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/", "data:text/plain,x", "javascript:1", "",
    "http://example.com:22/", "http://example.com:25/", "http://example.com:6667/", "https://" + "a" * 2_048,
    "HTTP+unix://x/", "http://exa_mple.com:/#" + "x" * 2_048, "http://example.com/" + "\u00e9" * 400,
]  # fmt: skip


@pytest.mark.parametrize("url", ODD)
def test_odd_forms_of_addresses_are_refused(url: str) -> None:
    with pytest.raises(ToolFailed) as refused:
        checked(url)
    assert len(str(refused.value)) < 250


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://a:b@example.com/", "user name or password"),
        ("ftp://example.com/", "Only http and https"),
        ("http://127.1/", "four of them"),
        ("http://example.com:25/", "Port 25"),
        ("http://ex\u00e4mple.com/", "xn--"),
        ("http://[::1", "no web address"),
        ("http://localhost./", "no host"),
    ],
)
def test_why_an_address_is_refused_is_told(url: str, why: str) -> None:
    with pytest.raises(ToolFailed, match=why):
        checked(url)


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("http://example.com", "http://example.com"),
        ("https://Example.COM:8443/a?b=c#d", "https://Example.COM:8443/a?b=c"),
        ("HTTP://example.com/", "http://example.com/"),
        ("http://example.com:/x", "http://example.com:/x"),
        ("http://xn--exmple-cua.com/", "http://xn--exmple-cua.com/"),
        ("https://de.wikipedia.org/wiki/K\u00f6ln?q=\u6f22", "https://de.wikipedia.org/wiki/K%C3%B6ln?q=%E6%BC%A2"),
        ("http://93.184.216.34/", "http://93.184.216.34/"),
        ("http://[2606:4700::1111]:81/", "http://[2606:4700::1111]:81/"),
        ("http://h/a%20b@c:d", "http://h/a%20b@c:d"),
    ],
)
def test_ordinary_addresses_are_taken_without_their_fragment(url: str, sent: str) -> None:
    assert checked(url) == sent
