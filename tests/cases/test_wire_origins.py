"""Pages of other origins: listed ones may call and read every answer, all others are refused, as with none listed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest
from starlette.responses import Response

from app.api.guard import Guard
from app.clock import UuidIds
from tests.kit.client import API, Answer
from tests.kit.model_server import done, finish, hold, text
from tests.kit.problems import check_problem, nothing_stored
from tests.kit.raw import exchange, head
from tests.kit.rules import check_case
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import check_stream

RUNS = f"{API}/runs"
NOWHERE = "0198c0de-0000-7000-8000-000000000001"
PAGE = "http://127.0.0.1:8000"
LISTED = [PAGE, "https://App.Example:443", "http://[0:0::1]:3000"]
ORIGINS = [PAGE, "https://app.example", "http://[::1]:3000"]
SENT = "Authorization, Content-Type, Idempotency-Key, If-Match, Last-Event-ID, Prefer, X-Request-Id"
READ = "ETag, Idempotent-Replayed, Location, Preference-Applied, Retry-After, X-Request-Id"
STRANGERS = [
    *("null", "", "file://", "http://127.0.0.1", "http://127.0.0.1:8001", "https://127.0.0.1:8000", "app.example"),
    *("http://localhost:8000", "http://app.example", "https://app.example:8443", "https://sub.app.example"),
    *("https://app.example.evil.test", "https://app.example/", f"{PAGE}, {PAGE}", "*", "http://[::1]"),
]


@pytest.fixture
async def one(service: ServiceFactory) -> AsyncIterator[Service]:
    """A service that lists a few origins."""
    async with service({"server.allowed_origins": LISTED}) as listing:
        yield listing


def check_told(headers: Mapping[str, str], origin: str) -> None:
    """That a page of this origin can read the answer and may read the headers that clients need."""
    assert headers.get("access-control-allow-origin") == origin, headers
    assert headers.get("access-control-expose-headers") == READ, headers
    check_varies(headers)


def check_varies(headers: Mapping[str, str]) -> None:
    """That no cache between gives one origin what was told to another; and that cookies are never asked for."""
    assert [name.strip() for name in headers.get("vary", "").split(",")] == ["Origin"], headers
    assert "access-control-allow-credentials" not in headers, headers


async def preflight(one: Service, origin: str, path: str = RUNS, host: str = "") -> Answer:
    """What a browser sends before a post with a JSON body; `host` when it is not the service's own."""
    asked = [
        ("Origin", origin),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "content-type"),
        ("Access-Control-Request-Private-Network", "true"),
    ]
    return await exchange(one.address, head("OPTIONS", path, asked, host=host or one.address.removeprefix("http://")))


async def test_a_listed_page_posts_follows_and_reads_whatever_comes(one: Service) -> None:
    """Success, repeats, lists, probes, an event stream, its 204, and refusals by a route and by the framework."""
    for origin in ORIGINS:
        headers = {"origin": origin}
        session = f"page-{ORIGINS.index(origin)}"
        accepted = await one.post("hello", session, f"key-{session}", headers=headers)
        assert accepted.status == 202 and accepted.headers["location"]
        record = await one.ended(accepted.run_id)
        path = f"{RUNS}/{accepted.run_id}"
        async with await one.stream(accepted.run_id, headers=headers) as stream:
            assert stream.status == 200
            check_told(stream.headers, origin)
            check_stream(await stream.collect_until_done())
        repeated = await one.post("hello", session, f"key-{session}", headers=headers)
        answers = [
            (accepted, 202),
            (repeated, 202),
            (await one.request("GET", RUNS, headers=headers), 200),
            (await one.request("GET", "/healthz", headers=headers), 200),
            (await one.request("GET", "/openapi.json", headers=headers), 200),
            (await one.request("GET", f"{path}/events", headers=headers, after=record["lastSeq"] + 1), 204),
            (await one.request("GET", f"{path}/events", headers=headers, after="x"), 400),
            (await one.request("GET", f"{RUNS}/{NOWHERE}/events", headers=headers), 404),
            (await one.request("GET", "/nothing", headers=headers), 404),
            (await one.request("DELETE", RUNS, headers=headers), 405),
            (await one.request("OPTIONS", RUNS, headers=headers), 405),
            (await one.request("POST", RUNS, content=b"x", headers=headers), 415),
            (await one.post("hello", session, headers=headers, nosuch=1), 422),
        ]
        for answer, status in answers:
            assert answer.status == status, answer
            check_told(answer.headers, origin)
        await check_case(one, [accepted.run_id], sessions=[session])


async def test_words_come_to_a_page_one_by_one(one: Service) -> None:
    one.model.on("slowly", [text("one "), hold("page"), text("two"), finish(), done()])
    stream = await one.post_stream("slowly", "page-stream", headers={"origin": PAGE})
    assert stream.status == 200
    check_told(stream.headers, PAGE)
    await stream.until(lambda event: event.payload.get("delta") == "one ")
    await one.model.until_held("page")
    one.model.release("page")
    assert check_stream(await stream.collect_until_done()).texts == ["one two"]
    stream.close()


async def test_what_a_page_may_send_is_told_before_anything_else(one: Service) -> None:
    """Whatever the path and the Host: what is wrong with them the page reads in the answer to the request itself."""
    for origin in ORIGINS:
        for path, host in ((RUNS, ""), (f"{RUNS}/{NOWHERE}/events", ""), ("/nothing", ""), (RUNS, "evil.test")):
            answer = await preflight(one, origin, path, host)
            assert answer.status == 204 and answer.headers.get("x-request-id"), answer
            check_told(answer.headers, origin)
            assert answer.headers["access-control-allow-headers"] == SENT
            assert answer.headers["access-control-max-age"] == "600"
            assert "access-control-allow-private-network" not in answer.headers


async def test_a_page_may_send_every_method_that_there_is(one: Service) -> None:
    told = (await preflight(one, PAGE)).headers["access-control-allow-methods"]
    paths = (await one.get("/openapi.json"))["paths"]
    assert sorted(told.split(", ")) == sorted({method.upper() for methods in paths.values() for method in methods})


async def test_a_page_can_read_that_the_host_is_wrong(one: Service) -> None:
    answer = await exchange(one.address, head("GET", RUNS, [("Origin", PAGE)], host="evil.test"))
    check_problem(answer, 403, "bad-host", header="Host")
    check_told(answer.headers, PAGE)


async def test_a_page_can_read_that_the_service_failed(service: ServiceFactory) -> None:
    async with service({"server.allowed_origins": LISTED}, faults="CP-1=raise") as one:
        answer = await one.post("x", "page-failure", headers={"origin": PAGE})
        check_problem(answer, 500, "internal")
        check_told(answer.headers, PAGE)


async def test_a_page_that_is_not_listed_is_refused(one: Service) -> None:
    """And is told nothing that would let it read why; preflights too. The problem says what to do."""
    other_port = f"http://127.0.0.1:{int(one.address.rpartition(':')[2]) + 1}"
    for origin in (*STRANGERS, other_port):
        with nothing_stored(one):
            refused = [
                await one.request("POST", RUNS, json={"message": "x"}, headers={"origin": origin}),
                await one.request("GET", f"{RUNS}/{NOWHERE}/events", headers={"origin": origin}),
                await preflight(one, origin),
            ]
        for answer in refused:
            problem = check_problem(answer, 403, "bad-origin", header="Origin")
            assert "server.allowed_origins" in problem["detail"]
            assert "access-control-allow-origin" not in answer.headers, (origin, answer)
            check_varies(answer.headers)


async def test_an_origin_in_capitals_is_the_same_one(one: Service) -> None:
    for origin in ("HTTP://127.0.0.1:8000", "https://APP.example"):
        answer = await one.request("GET", RUNS, headers={"origin": origin})
        assert answer.status == 200
        check_told(answer.headers, origin)
        assert (await preflight(one, origin)).status == 204


async def test_the_services_own_pages_and_other_clients_go_on_as_they_are(one: Service) -> None:
    for headers in ({}, {"origin": one.address}):
        answer = await one.request("GET", RUNS, headers=headers)
        assert answer.status == 200 and "access-control-allow-origin" not in answer.headers
        check_varies(answer.headers)
    check_problem(await preflight(one, one.address), 405, "method-not-allowed")


async def test_with_no_origin_listed_nothing_is_said_of_origins(shared_service: Service) -> None:
    for headers, status in (({}, 200), ({"origin": shared_service.address}, 200), ({"origin": PAGE}, 403)):
        answer = await shared_service.request("GET", RUNS, headers=headers)
        assert answer.status == status
        assert not [name for name in answer.headers if name.startswith("access-control") or name == "vary"]
    check_problem(await preflight(shared_service, PAGE), 403, "bad-origin", header="Origin")


async def test_what_an_answer_varies_by_already_stays() -> None:
    """In front of an application of one answer: no route of the service varies by anything yet."""
    sent: list[dict[str, list[tuple[bytes, bytes]]]] = []

    async def send(message: dict[str, list[tuple[bytes, bytes]]]) -> None:
        sent.append(message)

    guard = Guard(Response(headers={"Vary": "Accept"}), UuidIds(), (), (PAGE,))
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
    await guard(scope, None, send)  # type: ignore[arg-type]
    assert [value for name, value in sent[0]["headers"] if name == b"vary"] == [b"Accept", b"Origin"]
