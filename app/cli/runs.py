"""`laneway runs`: list, show, abort and follow the runs of a running service."""

from __future__ import annotations

from typing import Annotated, Any

import httpx
import typer

from app.cli.output import json_text
from app.cli.remote import JsonOption, LimitOption, UrlOption, fail, remote, segment
from app.cli.stream import RunStream, StreamError
from app.cli.tables import print_json, print_record, print_table

PAGE = 200

commands = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, add_completion=False, help="List, show, abort and follow runs."
)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.", show_default=False)]


@commands.command("list")
def list_runs(
    session: Annotated[str | None, typer.Option("--session", metavar="KEY", help="Of this session.")] = None,
    status: Annotated[str | None, typer.Option("--status", help="In these states, with commas between.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="ID", help="Of this agent.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Accepted at or after.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Accepted at or before.")] = None,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List runs, newest first."""
    with remote(url) as service:
        found = service.items(
            "/api/v1/runs", limit, PAGE, sessionKey=session, status=status, agent=agent, since=since, until=until
        )
    if as_json:
        print_json(found)
        return
    rows = [
        (run["runId"], run["acceptedAt"], run["status"], _why(run), run["sessionKey"], run["model"], run["label"])
        for run in found
    ]
    print_table(("run", "accepted", "status", "outcome", "session", "model", "label"), rows, nothing="No such runs.")


@commands.command()
def show(run: RunArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Show one run."""
    with remote(url) as service:
        found = service.get(_path(run))
    if as_json:
        print_json(found)
    else:
        print_record({name: value for name, value in found.items() if name != "links"})


@commands.command()
def abort(
    run: RunArgument,
    reason: Annotated[str | None, typer.Option("--reason", help="Kept with the run.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Stop a run. One that has ended stays as it is."""
    with remote(url) as service:
        found = service.post(f"{_path(run)}/abort", {} if reason is None else {"reason": reason})
    if as_json:
        print_json(found)
    elif found["abortRequestedAt"] is None:
        print(f"{run} has ended already: {found['status']}")
    else:
        print(f"{run} is asked to stop: {found['status']}")


@commands.command()
def events(
    run: RunArgument,
    after: Annotated[str | None, typer.Option("--after", metavar="ID", help="Go on behind this event.")] = None,
    url: UrlOption = None,
) -> None:
    """Print a run's events as they come, one JSON object a line, until its end."""
    with remote(url) as service:
        run = service.get(_path(run))["runId"]
        stream = RunStream.of_run(service.client, run, after)
        try:
            for event in stream.events():
                print(json_text(event.payload), flush=True)
        except (StreamError, httpx.HTTPError) as problem:
            raise typer.Exit(fail(str(problem))) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def _path(run: str) -> str:
    return f"/api/v1/runs/{segment(run, 'RUN')}"


def _why(run: dict[str, Any]) -> str | None:
    """The outcome, or the code of the error."""
    error = run["error"]
    why: str | None = error["code"] if error else run["outcome"]
    return why
