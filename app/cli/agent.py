"""`laneway agent`: one message to a running service, the reply streamed to the terminal.

Builds the request and turns what became of the run into an exit code: 0 ok, 1 error, 2 usage, 124 timeout,
130 interrupted (the run is aborted then). Following the run is `stream`, showing it `screen`.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import httpx
import typer

from app.cli.remote import LOOPBACK, UrlOption, fail, no_service, service_url
from app.cli.screen import JsonLines, Screen, View
from app.cli.stream import NoService, RunStream, StreamError, TimedOut
from app.clock import UuidIds
from app.domain.message import ThinkingLevel

_ERROR, _TIMEOUT, _INTERRUPTED = 1, 124, 130

_GRACE_S = 10.0
"""A run ends itself at its limit; only a service that does not say so in this time is given up."""


def agent(
    message: Annotated[str, typer.Argument(help="What to say.", show_default=False)],
    session: Annotated[str | None, typer.Option("--session", metavar="KEY", help="Session key.")] = None,
    agent_id: Annotated[str | None, typer.Option("--agent", metavar="ID", help="Agent to ask.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help="Model: provider:model.")] = None,
    thinking: Annotated[ThinkingLevel | None, typer.Option("--thinking", help="How much to think.")] = None,
    timeout_seconds: Annotated[
        float | None, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="Longest time the run may take.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run's events, one JSON object a line.")] = False,
    url: UrlOption = None,
) -> None:
    """Send one message to a running service and print the reply.

    Exit code: 0 the run succeeded, 1 it failed or could not be followed, 2 wrong usage, 124 it timed out.
    Ctrl-C aborts the run.
    """
    if not message.strip():
        raise typer.BadParameter("an empty message says nothing", param_hint="MESSAGE")
    base = service_url(url)
    given = {
        "sessionKey": session,
        "agent": agent_id,
        "model": model,
        "thinking": thinking,
        "timeoutSeconds": _whole(timeout_seconds),
    }
    body = {"message": message, **{name: value for name, value in given.items() if value is not None}}
    view: View = JsonLines(sys.stdout) if as_json else Screen(sys.stdout, sys.stderr)
    raise typer.Exit(_follow(base, body, timeout_seconds, view))


def _follow(base: httpx.URL, body: dict[str, Any], timeout_seconds: float | None, view: View) -> int:
    """Run it and return the exit code."""
    # A proxy that stands in the environment is meant for the network, not for this machine.
    with httpx.Client(base_url=base, trust_env=base.host not in LOOPBACK) as client:
        deadline_s = None if timeout_seconds is None else timeout_seconds + _GRACE_S
        stream = RunStream(client, body, UuidIds().new(), deadline_s=deadline_s)
        result: dict[str, Any] = {}
        try:
            for event in stream.events():
                view.show(event)
                if event.name == "done":
                    result = event.data
        except KeyboardInterrupt:
            view.close()
            return _abort(stream)
        except NoService:
            view.close()
            return fail(no_service(base))
        except TimedOut:
            view.close()
            return fail(f"no end after {timeout_seconds:g} seconds", _TIMEOUT)
        except StreamError as error:
            view.close()
            return fail(str(error))
        view.close()
        return _code(result)


def _abort(stream: RunStream) -> int:
    try:
        stream.abort()
        print("aborted", file=sys.stderr)
    except StreamError as error:
        fail(str(error))
    except KeyboardInterrupt:
        pass  # asked twice: leave at once
    return _INTERRUPTED


def _code(result: dict[str, Any]) -> int:
    """The exit code of a run that ended; why it failed goes to standard error."""
    status, error = result.get("status"), result.get("error") or {}
    if status == "ok":
        return 0
    reason = f"{error.get('message') or 'the run failed'} [{error.get('code') or status}]"
    return fail(reason, _TIMEOUT if status == "timeout" else _ERROR)


def _whole(seconds: float | None) -> float | int | None:
    """Seconds as people wrote them: 600, not 600.0."""
    return int(seconds) if seconds is not None and seconds.is_integer() else seconds
