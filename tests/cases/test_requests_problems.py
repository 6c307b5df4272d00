"""Problem documents: every refusal is one, whole and consistent, on every path, and nothing is stored by it."""

from __future__ import annotations

import re

import pytest

from tests.kit.client import API
from tests.kit.problems import check_problem, nothing_stored
from tests.kit.raw import exchange, head, json_request
from tests.kit.service import Service, ServiceFactory

RUNS = f"{API}/runs"
NOWHERE = "0198c0de-0000-7000-8000-000000000001"
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

BROKEN_JSON = [
    *(b"", b" ", b"{", b"{}}", b"nonsense", b'{"message": "x"', b'{"message": "x",}', b"{'message': 'x'}"),
    *(b'{"message": "x"} y', b'{"message": NaN}', b'{"message": "a\nb"}', b'{"message": "\\x"}', b"\xff\xfe{\x00}\x00"),
    *(b'{"message": "\xff"}', b'{"message": "\xed\xa0\x80"}', b'{"message": "\xc3"}', b'{"message": "\\ud800"}'),
    *(b'{"message": "\\udc00x"}', b'{"message": "x", "metadata": {"\\ud800": 1}}', b'\xef\xbb\xbf{"message": "x"}'),
    b'{"message": "x", "timeoutSeconds": 1e999}',
]


@pytest.mark.parametrize("content", BROKEN_JSON, ids=repr)
async def test_bytes_that_are_no_json_in_utf8_are_a_bad_request(shared_service: Service, content: bytes) -> None:
    headers = {"content-type": "application/json", "idempotency-key": "broken-json"}
    with nothing_stored(shared_service):
        answer = await shared_service.request("POST", RUNS, content=content, headers=headers)
    check_problem(answer, 400, "bad-request", pointer="#")


@pytest.mark.parametrize("content", [b"[]", b"5", b'"message"', b"null", b"true", b'[{"message": "x"}]'], ids=repr)
async def test_json_that_is_no_object_is_refused(shared_service: Service, content: bytes) -> None:
    with nothing_stored(shared_service):
        answer = await shared_service.request(
            "POST", RUNS, content=content, headers={"content-type": "application/json"}
        )
    check_problem(answer, 422, "validation-failed", pointer="#")


@pytest.mark.parametrize(
    "kind", [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json", "application/"]
)
async def test_a_body_of_another_type_is_refused(shared_service: Service, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    with nothing_stored(shared_service):
        answer = await shared_service.request("POST", RUNS, content=b'{"message": "x"}', headers=headers)
    check_problem(answer, 415, "unsupported-media-type", header="Content-Type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.x+json"])
async def test_json_by_any_of_its_names_is_taken(shared_service: Service, kind: str) -> None:
    body = b'{"message": "x", "sessionKey": "content-types"}'
    answer = await shared_service.request("POST", RUNS, content=body, headers={"content-type": kind})
    assert answer.status == 202, answer.body
    await shared_service.ended(answer.run_id)


UNKNOWN_PATHS = [
    *("/nothing", "/api", "/api/", "/api/v1", "/api/v1/", "/api/v2/runs", f"{API}/run", f"{RUNS}/", f"{RUNS}/x/y"),
    *(
        f"{RUNS}/{NOWHERE}/events/",
        f"{API}/sessions/",
        f"{API}/sessions/a/b/c",
        "/healthz/",
        "/Healthz",
        "//api/v1/runs",
    ),
    *(f"{API}/cron/jobs", f"{API}/events", "/v1/chat/completions", "/ag-ui", "/hooks/agent", "/%00", "/%ff", "/é"),
]


@pytest.mark.parametrize("path", UNKNOWN_PATHS, ids=ascii)
async def test_a_path_that_is_not_served_is_not_found(shared_service: Service, path: str) -> None:
    for method in ("GET", "POST"):
        check_problem(await shared_service.request(method, path), 404, "not-found")


@pytest.mark.parametrize("run_id", [NOWHERE, NOWHERE.upper(), "x", "0", "-", "%00", "%ff", "a" * 5000, "..%2f"])
async def test_a_run_that_is_unknown_is_not_found_anywhere(shared_service: Service, run_id: str) -> None:
    routes = [("GET", ""), ("GET", "/wait"), ("GET", "/wait?timeoutMs=0"), ("POST", "/abort"), ("GET", "/events")]
    for method, rest in routes:
        answer = await shared_service.request(method, f"{RUNS}/{run_id}{rest}")
        code = "not-found" if "%2f" in run_id else "run-not-found"
        check_problem(answer, 404, code)
    assert not shared_service.query("SELECT * FROM audit WHERE run_id = ?", run_id)


async def test_a_session_that_is_unknown_is_not_found_anywhere(shared_service: Service) -> None:
    base = f"{API}/sessions/no-such-session"
    for method, rest in (("GET", ""), ("GET", "/transcript"), ("POST", "/abort")):
        check_problem(await shared_service.request(method, base + rest), 404, "session-not-found")


ROUTES: dict[str, set[str]] = {
    RUNS: {"GET", "POST"},
    f"{RUNS}/{NOWHERE}": {"GET"},
    f"{RUNS}/{NOWHERE}/wait": {"GET"},
    f"{RUNS}/{NOWHERE}/events": {"GET"},
    f"{RUNS}/{NOWHERE}/abort": {"POST"},
    f"{API}/sessions": {"GET"},
    f"{API}/sessions/x": {"GET"},
    f"{API}/sessions/x/transcript": {"GET"},
    f"{API}/sessions/x/abort": {"POST"},
    f"{API}/audit": {"GET"},
    f"{API}/agents": {"GET"},
    f"{API}/models": {"GET"},
    "/healthz": {"GET"},
    "/readyz": {"GET"},
    "/metrics": {"GET"},
}


@pytest.mark.parametrize("path", ROUTES)
async def test_a_method_that_is_not_served_is_told_which_are(shared_service: Service, path: str) -> None:
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "TRACE"} - ROUTES[path]:
        answer = await shared_service.request(method, path)
        check_problem(answer, 405, "method-not-allowed")
        allowed = {name.strip() for name in answer.headers["allow"].split(",")}
        assert allowed - {"HEAD"} == ROUTES[path], f"{method} {path}: Allow: {answer.headers['allow']}"


async def test_the_request_id_is_echoed_or_made(shared_service: Service) -> None:
    """On success, on refusals and on streams; what would be no good name is replaced."""
    run_id = await shared_service.run("x", "request-ids")
    await shared_service.ended(run_id)
    paths = [RUNS, f"{RUNS}/{run_id}", f"{RUNS}/{NOWHERE}", "/nothing", "/healthz", "/metrics", "/openapi.json"]
    for path in paths:
        for given in ("mine-1", "A.b_c:d-9", "x" * 128, NOWHERE):
            answer = await shared_service.request("GET", path, headers={"x-request-id": given})
            assert answer.headers["x-request-id"] == given, path
            if answer.status >= 400:
                assert answer.body["instance"] == f"urn:laneway:request:{given}"
        for given in ("", " ", "x" * 129, "a b", "a/b", "é", '"a"', "a,b"):
            sent = head("GET", path, [("X-Request-Id", given.encode())])
            answer = await exchange(shared_service.address, sent)
            assert UUID.fullmatch(answer.headers["x-request-id"]), (path, given, answer.headers)
        one, other = [(await shared_service.request("GET", path)).headers["x-request-id"] for _ in range(2)]
        assert one != other and UUID.fullmatch(one)
    async with await shared_service.stream(run_id, headers={"x-request-id": "a-stream"}) as stream:
        assert stream.status == 200 and stream.headers["x-request-id"] == "a-stream"


async def test_nothing_under_the_api_is_cached(shared_service: Service) -> None:
    run_id = await shared_service.run("x", "no-store")
    await shared_service.ended(run_id)
    paths = [RUNS, f"{RUNS}/{run_id}", f"{RUNS}/{run_id}/wait", f"{API}/sessions/no-store/transcript", f"{API}/audit"]
    for path in [*paths, f"{RUNS}/{NOWHERE}", f"{API}/nothing", f"{API}/sessions/%20"]:
        answer = await shared_service.request("GET", path)
        assert "no-store" in answer.headers.get("cache-control", ""), path


async def test_a_failure_inside_is_one_problem_and_spoils_nothing(service: ServiceFactory) -> None:
    """The answer names the request and nothing of the inside; the connection, the key and the session go on."""
    async with service(faults="CP-1=raise") as one:
        await one.get(RUNS)
        with nothing_stored(one):
            answer = await one.post("words-of-mine", "after-a-failure", "kept-key", headers={"x-request-id": "broken"})
        problem = check_problem(answer, 500, "internal")
        assert answer.headers["x-request-id"] == "broken" and "no-store" in answer.headers["cache-control"]
        for secret in ("Fault", "CP-1", "Traceback", "words-of-mine", ".py"):
            assert secret not in str(problem), problem
        assert '"broken"' in one.log, "the log does not know the request"
        for _ in range(3):
            await one.get(RUNS)
        record = await one.ended(await one.run("words-of-mine", "after-a-failure", "kept-key"))
        assert record["status"] == "succeeded"


HOSTS_TAKEN = ["localhost", "LocalHost:1", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8420", "box.test", "BOX.test:1"]
HOSTS_REFUSED = [
    *("", "evil.test", "localhost.evil.test", "127.0.0.1.nip.io", "127.0.0.2", "0.0.0.0", "box.test.evil.test"),
    *("localhost, evil.test", "[::2]", "[", "::1", "http://localhost", "sub.box.test", "evil.test#localhost"),
]


async def test_only_named_hosts_are_answered(service: ServiceFactory) -> None:
    """A DNS name that somebody made to point here is none of them."""
    async with service({"server.allowed_hosts": ["box.test"]}) as one:
        for host in HOSTS_TAKEN:
            assert (await exchange(one.address, head("GET", "/healthz", host=host))).status == 200, host
        with nothing_stored(one):
            for host in HOSTS_REFUSED:
                answer = await exchange(one.address, json_request("POST", RUNS, {"message": "x"}, host=host))
                check_problem(answer, 403, "bad-host", header="Host")
                check_problem(await exchange(one.address, head("GET", "/healthz", host=host)), 403, "bad-host")
            doubled = await exchange(one.address, head("GET", "/healthz", [("Host", "evil.test")]))
            assert doubled.status in (400, 403), doubled


async def test_a_page_of_another_origin_is_refused(shared_service: Service) -> None:
    own = shared_service.address.removeprefix("http://")
    port = own.rpartition(":")[2]
    for origin in (f"http://{own}", f"https://{own}"):
        assert (await shared_service.request("GET", RUNS, headers={"origin": origin})).status == 200, origin
    with nothing_stored(shared_service):
        for origin in (
            *(
                "null",
                "",
                "http://evil.test",
                f"http://evil.test:{port}",
                "http://127.0.0.1",
                f"http://localhost:{port}",
            ),
            *(f"http://127.0.0.1:{int(port) + 1}", f"http://{own}.evil.test", "file://", f"http://evil.test/{own}"),
        ):
            answer = await shared_service.request("POST", RUNS, json={"message": "x"}, headers={"origin": origin})
            check_problem(answer, 403, "bad-origin", header="Origin")
            stream = await shared_service.request("GET", f"{RUNS}/{NOWHERE}/events", headers={"origin": origin})
            check_problem(stream, 403, "bad-origin", header="Origin")
