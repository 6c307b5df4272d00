"""A running service as the commands reach it: where it is, plain requests, lists page by page, failures in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn
from urllib.parse import quote

import httpx
import typer

from app.cli.stream import problem_line
from app.settings import load

TIMEOUT_S = 30.0
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

UrlOption = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The service; default LANEWAY_URL, else the configured port.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON in place of a table.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many at most.")]


def service_url(option: str | None) -> httpx.URL:
    """Where the service is: the option, LANEWAY_URL, or this machine's configured port. Raises typer.BadParameter."""
    named = option or os.environ.get("LANEWAY_URL")
    if not named:
        server = load(None, os.environ, {}, secrets=False).settings.server
        if server.port == 0:
            raise typer.BadParameter("server.port is 0, so the port is not known; say it", param_hint="--url")
        host = f"[{server.host}]" if ":" in server.host else server.host
        named = f"http://{host}:{server.port}"
    try:
        url = httpx.URL(named.rstrip("/"))
    except httpx.InvalidURL as error:
        raise typer.BadParameter(f"{named!r} is not a URL: {error}", param_hint="--url") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise typer.BadParameter(f"{named!r} is not a URL such as http://127.0.0.1:8420", param_hint="--url")
    return url


def segment(given: str, name: str) -> str:
    """What the caller named as one segment of a path, and no more. Raises typer.BadParameter."""
    if given in ("", ".", ".."):
        raise typer.BadParameter(f"{given!r} is no {name.lower()}", param_hint=name)
    return quote(given, safe="")


def fail(reason: str, code: int = 1) -> int:
    """One line on standard error; returns the exit code."""
    line = "".join(char if char.isprintable() else " " for char in reason)
    print(f"laneway: {' '.join(line.split())}", file=sys.stderr)
    return code


def no_service(base: httpx.URL) -> str:
    """The line for a service that is not there."""
    return f"No Laneway answers on {base}; start one with `make run` or `laneway serve`"


class Remote:
    """Requests to one service. What it refuses, or does not answer, ends the command with exit code 1 and one line."""

    def __init__(self, client: httpx.Client, base: httpx.URL) -> None:
        self.client = client
        self._base = base

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """`query`: what is None is left out."""
        return self._answer("GET", path, params={name: value for name, value in query.items() if value is not None})

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._answer("POST", path, json=body)

    def items(self, path: str, limit: int, page: int, **query: Any) -> list[dict[str, Any]]:
        """Up to `limit` items of a list, in pages of at most `page`."""
        return self.pages(path, limit, page, None, **query)[0]

    def pages(
        self, path: str, limit: int, page: int, cursor: str | None, **query: Any
    ) -> tuple[list[dict[str, Any]], str | None]:
        """As `items`, from a cursor on; with the cursor behind them, None at the end of the list."""
        found: list[dict[str, Any]] = []
        while len(found) < limit:
            answer = self.get(path, limit=min(page, limit - len(found)), cursor=cursor, **query)
            found += answer["items"]
            cursor = answer["nextCursor"]
            if cursor is None:
                break
        return found, cursor

    def _answer(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        try:
            response = self.client.request(method, path, **more)
            if not response.is_success:
                self._end(problem_line(response))
            body: dict[str, Any] = response.json()
        except httpx.ConnectError:
            self._end(no_service(self._base))
        except httpx.TransportError as problem:
            self._end(f"{self._base} did not answer: {problem or type(problem).__name__}")
        except ValueError:
            self._end(f"{self._base} does not answer as a Laneway does")
        return body

    @staticmethod
    def _end(reason: str) -> NoReturn:
        raise typer.Exit(fail(reason))


@contextmanager
def remote(url: str | None) -> Iterator[Remote]:
    """Connect to the service that `--url` names."""
    base = service_url(url)
    # A proxy that stands in the environment is meant for the network, not for this machine.
    with httpx.Client(base_url=base, trust_env=base.host not in LOOPBACK, timeout=TIMEOUT_S) as client:
        yield Remote(client, base)
