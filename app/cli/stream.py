"""One run as a client follows it: post once, read its events, come back after every cut until `done`.

The reader of the wire contract that the command line needs; it prints nothing. How events look on a terminal
is `screen`, what the exit code is stands in `agent`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import sleep
from typing import Any, Final

import httpx
from httpx_sse import EventSource, ServerSentEvent, SSEError

from app.clock import SystemChance, SystemClock

GIVE_UP_S: Final = 300.0
"""Without any answer for this long the service counts as gone. The run itself is safe with it."""

SILENCE_S: Final = 45.0
"""Longest silence of an open stream until `ready` has said how often it sends heartbeats."""

_HEARTBEATS_MISSED: Final = 3
_BACKOFF_FIRST_S: Final = 0.5
_BACKOFF_MOST_S: Final = 10.0
_ABORT_WAIT_S: Final = 5.0

_PASSING = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses that a later try may turn, from us or from a proxy before us."""

_NOT_PASSING = frozenset({"draining", "queue-full"})
"""Problem codes with such a status that refuse a new run now: the caller shall decide, not wait."""


class StreamError(Exception):
    """Following ended without the run's end. `str(error)` is one line for people."""


class NoService(StreamError):
    """Nothing listens there."""


class TimedOut(StreamError):
    """The caller's own deadline passed."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `payload` is the envelope as it came, `data` what is inside it."""

    name: str
    payload: dict[str, Any]

    @property
    def data(self) -> dict[str, Any]:
        inner = self.payload.get("data") if "stream" in self.payload else self.payload
        return inner if isinstance(inner, dict) else {}


class RunStream:
    """Posts a run and yields its events in order, each once, whatever happens to the connection."""

    def __init__(
        self, client: httpx.Client, body: dict[str, Any], key: str, *, deadline_s: float | None = None
    ) -> None:
        """`key` is the Idempotency-Key: a repeated post with it is the same run. `deadline_s` counts from now."""
        self._client, self._body, self._key = client, body, key
        self._clock, self._chance = SystemClock(), SystemChance()
        now = self._clock.steady_s()
        self._deadline = None if deadline_s is None else now + deadline_s
        self._heard_at = now
        self._posted = False
        self._answered = False
        self._misses = 0
        self._least_wait_s = 0.0
        self._silence_s = SILENCE_S
        self._last_id = ""
        self.run_id: str | None = None

    @classmethod
    def of_run(cls, client: httpx.Client, run_id: str, after: str | None = None) -> RunStream:
        """Follow a run that is there already, behind an event or from its beginning."""
        stream = cls(client, {}, "")
        stream.run_id = run_id
        stream._last_id = after or ""
        return stream

    def events(self) -> Iterator[Event]:
        """Every event up to `done`, which is the last. Raises StreamError."""
        while True:
            try:
                with self._open() as response:
                    if response.status_code == 204:
                        # Only the cursor behind `done` gets this answer, so `done` was sent and has been lost.
                        yield Event("done", self._result())
                        return
                    for event in self._read(response):
                        yield event
                        if event.name == "done":
                            return
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if not self._answered:
                    raise NoService(str(error)) from error
            except (httpx.TransportError, httpx.DecodingError):
                self._answered = True  # it was there: the post may have arrived
            self._pause()

    def abort(self) -> None:
        """Ask the service to stop the run. Raises StreamError when that could not be said."""
        try:
            if self.run_id is None and self._posted:
                # Whether the post arrived is not known; the same post again tells.
                accepted = self._client.post(
                    "/api/v1/runs", json=self._body, headers={"Idempotency-Key": self._key}, timeout=_ABORT_WAIT_S
                )
                self._learn_id(accepted)
            if self.run_id is None:
                return
            answer = self._client.post(f"/api/v1/runs/{self.run_id}/abort", json={}, timeout=_ABORT_WAIT_S)
        except httpx.HTTPError as error:
            raise StreamError(f"the run could not be aborted: {error or type(error).__name__}") from error
        if not answer.is_success:
            raise StreamError(f"the run could not be aborted: {problem_line(answer)}")

    @contextmanager
    def _open(self) -> Iterator[httpx.Response]:
        """A stream that begins where the last one ended, or an answer that says there is no more."""
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        timeout = httpx.Timeout(10.0, read=max(0.05, min(self._silence_s, self._left_s())))
        if self.run_id is None:
            self._posted = True
            request = self._client.build_request(
                "POST",
                "/api/v1/runs",
                json=self._body,
                headers={**headers, "Idempotency-Key": self._key},
                timeout=timeout,
            )
        else:
            cursor = {"Last-Event-ID": self._last_id} if self._last_id else {}
            path = f"/api/v1/runs/{self.run_id}/events"
            request = self._client.build_request("GET", path, headers={**headers, **cursor}, timeout=timeout)
        response = self._client.send(request, stream=True)
        self._answered = True
        try:
            if response.status_code not in (200, 204):
                response.read()
            yield response
        finally:
            response.close()

    def _read(self, response: httpx.Response) -> Iterator[Event]:
        """The events of one connection; an answer that is no stream either raises or asks for another try."""
        if response.status_code != 200:
            self._refused(response)
            return
        self._learn_id(response)
        try:
            for sse in EventSource(response).iter_sse():
                self._heard_at = self._clock.steady_s()
                event = self._take(sse)
                if event is not None:
                    yield event
                if self._left_s() <= 0:
                    raise TimedOut("the deadline has passed")
        except SSEError as error:
            raise StreamError(f"{response.url} does not answer as Laneway does") from error

    def _take(self, sse: ServerSentEvent) -> Event | None:
        """Note what a block says about the stream itself, and shape the rest."""
        if sse.id:
            self._last_id = sse.id
        if sse.retry is not None:
            self._least_wait_s = sse.retry / 1000
        try:
            payload = json.loads(sse.data)
        except ValueError:
            payload = None
        if not isinstance(payload, dict):
            return None
        self._misses = 0
        event = Event(sse.event or str(payload.get("stream", "message")), payload)
        if isinstance(event.data.get("heartbeatSeconds"), int | float):
            self._silence_s = _HEARTBEATS_MISSED * float(event.data["heartbeatSeconds"])
        if event.name == "accepted" and isinstance(event.data.get("runId"), str):
            self.run_id = event.data["runId"]
        if event.name == "shutdown" and isinstance(event.data.get("restartExpectedMs"), int | float):
            self._least_wait_s = max(self._least_wait_s, event.data["restartExpectedMs"] / 1000)
        return event

    def _refused(self, response: httpx.Response) -> None:
        """Return when a later try makes sense, else raise."""
        code = _problem(response).get("code")
        passing = response.status_code in _PASSING and (self.run_id is not None or code not in _NOT_PASSING)
        if not passing:
            raise StreamError(problem_line(response))
        self._least_wait_s = _retry_after_s(response)

    def _pause(self) -> None:
        """Wait before the next try: longer each time, never all clients at once."""
        wait_s = min(_BACKOFF_MOST_S, _BACKOFF_FIRST_S * 2**self._misses) * self._chance.between(0.5, 1.0)
        if self._least_wait_s:
            wait_s = max(self._least_wait_s, wait_s if self._misses else 0.0)
        self._misses += 1
        self._least_wait_s = 0.0
        if self._clock.steady_s() - self._heard_at > GIVE_UP_S:
            run = f"; the run {self.run_id} goes on there" if self.run_id else ""
            raise StreamError(f"the service has not answered for {GIVE_UP_S:.0f} seconds{run}")
        sleep(max(0.0, min(wait_s, self._left_s())))
        if self._left_s() <= 0:
            raise TimedOut("the deadline has passed")

    def _left_s(self) -> float:
        return float("inf") if self._deadline is None else self._deadline - self._clock.steady_s()

    def _learn_id(self, response: httpx.Response) -> None:
        """An accepting answer names its run in `Location`, before its first event."""
        location = response.headers.get("Location", "")
        if self.run_id is None and response.is_success and location:
            self.run_id = location.rstrip("/").rpartition("/")[2]

    def _result(self) -> dict[str, Any]:
        """How the run ended, for a reader that has missed it."""
        answer = self._client.get(f"/api/v1/runs/{self.run_id}/wait", params={"timeoutMs": 0}, timeout=_ABORT_WAIT_S)
        if not answer.is_success:
            raise StreamError(problem_line(answer))
        result: dict[str, Any] = answer.json()
        return result


def problem_line(response: httpx.Response) -> str:
    """A refusal as one line: what is wrong, where, and the code."""
    problem = _problem(response)
    if "code" not in problem:
        return f"{response.url.host} answered {response.status_code} {response.reason_phrase}".rstrip()
    places = "; ".join(
        f"{error.get('pointer') or error.get('parameter') or error.get('header') or ''}: {error.get('detail', '')}"
        for error in problem.get("errors") or []
        if isinstance(error, dict)
    )
    text = f"{problem.get('detail') or problem.get('title') or 'refused'}{f' ({places})' if places else ''}"
    return f"{' '.join(text.split())} [{problem['code']}]"


def _problem(response: httpx.Response) -> dict[str, Any]:
    """The problem document of an answer, empty when it has none."""
    try:
        problem = response.json()
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _retry_after_s(response: httpx.Response) -> float:
    told_ms = _problem(response).get("retryAfterMs")
    if isinstance(told_ms, int | float):
        return min(60.0, told_ms / 1000)
    header = response.headers.get("Retry-After", "")
    return min(60.0, float(header)) if header.isdecimal() else 0.0
