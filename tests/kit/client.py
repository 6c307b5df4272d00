"""The API of the service under test, as tests call it: plain values in, the answer out.

`request` gives any answer as it is, once the document is found to describe it; the named calls that return a dict or a
list expect success and say so.
One HTTP client for each event loop; streams are read by the kit's own reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import httpx
import orjson

from tests.kit.contract import expect
from tests.kit.follower import Follower
from tests.kit.stream import Stream

API = "/api/v1"
_CONNECTIONS_MAX = 2000


class Answer(NamedTuple):
    """Status, JSON body (None when it is no JSON) and headers of one call."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def run_id(self) -> str:
        """Of an accept answer."""
        assert isinstance(self.body, dict) and "runId" in self.body, f"no run id in {self.status} {self.body}"
        return str(self.body["runId"])

    @property
    def code(self) -> str | None:
        """Of a problem."""
        return self.body.get("code") if isinstance(self.body, dict) else None


class Client:
    """Calls on one service. `address` is asked for at every call, since a service may come back elsewhere."""

    address: str = ""
    default_headers: Mapping[str, str] = {}

    def __init__(self) -> None:
        self._http: httpx.AsyncClient | None = None
        self._http_loop: asyncio.AbstractEventLoop | None = None

    async def request(  # noqa: PLR0913
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        **query: Any,
    ) -> Answer:
        """Any call; `path` begins with a slash. `query` values that are None are left out."""
        named = {**self.default_headers, **(headers or {})}
        if json is not None:
            content = orjson.dumps(json)
            named.setdefault("content-type", "application/json")
        response = await self._send(method, with_query(path, query), content, named, timeout_s)
        return Answer(response.status_code, _json(response), response.headers)

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        """A GET that has to succeed."""
        return _expect(await self.request("GET", path, **query), 200)

    async def text(self, path: str) -> str:
        """A GET that has to succeed, of what is no JSON."""
        response = await self._send("GET", path)
        assert response.status_code == 200, f"expected 200, got {response.status_code}: {response.text}"
        return response.text

    # runs

    async def post(
        self,
        message: Any,
        session: str | None = None,
        key: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Answer:
        """Post a message. `session` is the session key, `key` the idempotency key, `fields` stand in the body."""
        named = {**({} if key is None else {"idempotency-key": key}), **(headers or {})}
        return await self.request("POST", f"{API}/runs", json=run_body(message, session, fields), headers=named)

    async def run(self, message: Any, session: str | None = None, key: str | None = None, **fields: Any) -> str:
        """Post a message that has to be accepted; the run id."""
        answer = await self.post(message, session, key, **fields)
        assert answer.status == 202, f"not accepted: {answer.status} {answer.body}"
        return answer.run_id

    async def record(self, run_id: str) -> dict[str, Any]:
        """The run."""
        return await self.get(f"{API}/runs/{run_id}")

    async def wait(self, run_id: str, timeout_ms: int = 30_000) -> dict[str, Any]:
        """The wait call's answer."""
        path = f"{API}/runs/{run_id}/wait"
        answer = await self.request("GET", path, timeout_s=timeout_ms / 1000 + 15, timeoutMs=timeout_ms)
        return _expect(answer, 200)

    async def ended(self, run_id: str, timeout_ms: int = 30_000) -> dict[str, Any]:
        """Wait for the end; the record. AssertionError when it has not ended in time."""
        answer = await self.wait(run_id, timeout_ms)
        assert answer.get("waitExpired") is not True, f"run {run_id} has not ended after {timeout_ms} ms"
        return await self.record(run_id)

    async def abort(self, run_id: str, reason: str | None = None) -> dict[str, Any]:
        """Abort a run."""
        body = {} if reason is None else {"reason": reason}
        return _expect(await self.request("POST", f"{API}/runs/{run_id}/abort", json=body), 200)

    async def runs(self, **query: Any) -> list[dict[str, Any]]:
        """All runs that fit (`sessionKey`, `status`, ...), newest first, over all pages."""
        return await self.items(f"{API}/runs", **query)

    # sessions and the ledger

    async def abort_session(self, key: str, reason: str | None = None) -> dict[str, Any]:
        """Abort all of a session."""
        body = {} if reason is None else {"reason": reason}
        return _expect(await self.request("POST", session_path(key, "/abort"), json=body), 200)

    async def session(self, key: str) -> dict[str, Any]:
        """The session."""
        return await self.get(session_path(key))

    async def sessions(self, **query: Any) -> list[dict[str, Any]]:
        """All sessions, over all pages."""
        return await self.items(f"{API}/sessions", **query)

    async def transcript(self, key: str, **query: Any) -> list[dict[str, Any]]:
        """The whole transcript, oldest first."""
        pages = await self._pages(session_path(key, "/transcript"), query)
        return [item for page in reversed(pages) for item in page]

    async def audit(self, **query: Any) -> list[dict[str, Any]]:
        """All ledger rows that fit, newest first."""
        return await self.items(f"{API}/audit", **query)

    async def items(self, path: str, **query: Any) -> list[dict[str, Any]]:
        """All items of a list, page after page."""
        return [item for page in await self._pages(path, query) for item in page]

    async def _pages(self, path: str, query: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
        pages: list[list[dict[str, Any]]] = []
        asked = {"limit": 200, **query}
        while True:
            page = await self.get(path, **asked)
            pages.append(page["items"])
            if page["nextCursor"] is None:
                return pages
            asked["cursor"] = page["nextCursor"]

    # streams

    async def stream(
        self,
        run_id: str,
        after: str | int | None = None,
        last_event_id: str | int | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        receive_buffer: int | None = None,
        **query: Any,
    ) -> Stream:
        """Open a run's stream; the answer may be any status."""
        path = with_query(f"{API}/runs/{run_id}/events", {"after": after, **query})
        return await self.open_stream(path, last_event_id, headers=headers, receive_buffer=receive_buffer)

    async def session_stream(
        self,
        key: str,
        after: str | None = None,
        last_event_id: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        receive_buffer: int | None = None,
        **query: Any,
    ) -> Stream:
        """Open a session's stream."""
        path = with_query(session_path(key, "/events"), {"after": after, **query})
        return await self.open_stream(path, last_event_id, headers=headers, receive_buffer=receive_buffer)

    async def post_stream(  # noqa: PLR0913
        self,
        message: Any,
        session: str | None = None,
        key: str | None = None,
        *,
        last_event_id: str | int | None = None,
        headers: Mapping[str, str] | None = None,
        receive_buffer: int | None = None,
        **fields: Any,
    ) -> Stream:
        """Post a message and read its stream in the same answer."""
        named = {} if key is None else {"idempotency-key": key}
        return await self.open_stream(
            f"{API}/runs",
            last_event_id,
            method="POST",
            body=orjson.dumps(run_body(message, session, fields)),
            headers={**named, **(headers or {})},
            receive_buffer=receive_buffer,
        )

    async def open_stream(  # noqa: PLR0913
        self,
        path: str,
        last_event_id: str | int | None = None,
        *,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        receive_buffer: int | None = None,
    ) -> Stream:
        """Open any path as a stream."""
        resumed = {} if last_event_id is None else {"last-event-id": str(last_event_id)}
        named = {**self.default_headers, **resumed, **(headers or {})}
        return await Stream.open(
            self.address + path, method=method, headers=named, body=body, receive_buffer=receive_buffer, described=True
        )

    def follow(self, run_id: str, after: str = "", **query: Any) -> Follower:
        """Follow a run to its end across lost connections and restarts (`await it.finish()`, or `async with`)."""
        path = with_query(f"{API}/runs/{run_id}/events", query)
        return Follower(lambda: self.address + path, headers=self.default_headers, after=after, described=True)

    async def close_clients(self) -> None:
        """Give the connections of this loop back."""
        if self._http is not None and self._http_loop is asyncio.get_running_loop():
            await self._http.aclose()
        self._http = None

    async def _send(
        self,
        method: str,
        target: str,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> httpx.Response:
        """The answer, which the document has to describe."""
        response = await self._client().request(
            method, self.address + target, content=content, headers=headers, timeout=timeout_s
        )
        asked = expect(method, target)
        asked.begun(response.status_code, response.headers)
        asked.body(response.content)
        return response

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._http is None or self._http_loop is not loop:
            limits = httpx.Limits(max_connections=_CONNECTIONS_MAX, max_keepalive_connections=100)
            self._http = httpx.AsyncClient(limits=limits, trust_env=False, verify=False)
            self._http_loop = loop
        return self._http


def run_body(message: Any, session: str | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an accept call."""
    named = {} if session is None else {"sessionKey": session}
    return {"message": message, **named, **fields}


def session_path(key: str, rest: str = "") -> str:
    """A path below a session."""
    return f"{API}/sessions/{quote(key, safe='')}{rest}"


def with_query(path: str, query: Mapping[str, Any]) -> str:
    """The path with its query; None is left out, lists are repeated."""
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def _json(response: httpx.Response) -> Any:
    try:
        return orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return None


def _expect(answer: Answer, status: int) -> dict[str, Any]:
    assert answer.status == status, f"expected {status}, got {answer.status}: {answer.body}"
    body: dict[str, Any] = answer.body
    return body
