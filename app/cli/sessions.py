"""`laneway sessions`: the sessions of a running service and what was said in them, and notes from beside it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.logs import configure_logging
from app.cli.remote import JsonOption, LimitOption, UrlOption, fail, remote, segment
from app.cli.tables import print_json, print_record, print_table
from app.domain.session import key_problem
from app.errors import SessionBusy, SessionNotFound
from app.settings import load

PAGE = 200

commands = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="List and show sessions, read them, and add notes.",
)

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="Key of the session.", show_default=False)]


@commands.command("list")
def list_sessions(
    agent: Annotated[str | None, typer.Option("--agent", metavar="ID", help="Of this agent.")] = None,
    search: Annotated[str | None, typer.Option("--search", metavar="TEXT", help="With this in their key.")] = None,
    active: Annotated[bool, typer.Option("--active", help="Only those with a run that has not ended.")] = False,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List sessions, last created first."""
    with remote(url) as service:
        found = service.items(
            "/api/v1/sessions", limit, PAGE, agent=agent, search=search, active="true" if active else None
        )
    if as_json:
        print_json(found)
        return
    rows = [
        (one["sessionKey"], one["lastInputAt"], one["entries"], one["queuedRuns"], one["activeRun"]) for one in found
    ]
    print_table(("session", "last input", "entries", "queued", "active run"), rows, nothing="No such sessions.")


@commands.command()
def show(key: KeyArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Show one session."""
    with remote(url) as service:
        found = service.get(_path(key))
    if as_json:
        print_json(found)
    else:
        print_record(found)


@commands.command()
def transcript(key: KeyArgument, limit: LimitOption = 50, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Print what was said last, oldest first."""
    with remote(url) as service:
        found = _newest(service.items, key, limit)
    if as_json:
        print_json(found)
        return
    for entry in found:
        who = entry["role"] if entry["kind"] == "message" else entry["kind"]
        print(f"[{entry['createdAt']}] {who}{' (cut off)' if entry['aborted'] else ''}")
        for part in entry["parts"]:
            print(_printable(_said(part)))
        print()


@commands.command()
def note(
    key: KeyArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The note; `-`: standard input.", show_default=False)],
    local: Annotated[
        bool, typer.Option("--local", help="Write to the state directory of this machine, also beside the service.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="The laneway.toml to read.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where everything durable lives.")] = None,
) -> None:
    """Append a note to a transcript; it waits while a run is under way."""
    if not local:
        raise typer.Exit(fail("a note through the service is not available in this build; use --local", 2))
    problem = key_problem(key)
    if problem is not None:
        raise typer.BadParameter(problem, param_hint="KEY")
    configure_logging()
    settings = load(config, os.environ, {"state_dir": state_dir}, secrets=False).settings
    from app.cli.local_note import append_locally, read_text
    from app.store.contract import LockUnusable

    try:
        words = read_text(text, settings.limits.request_body_bytes)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong), param_hint="TEXT") from None
    try:
        entry_no = asyncio.run(append_locally(settings, key, words))
    except (SessionNotFound, SessionBusy, LockUnusable) as refusal:
        raise typer.Exit(fail(str(refusal))) from None
    print(f"Noted as entry {entry_no} of {key}")


def _newest(items: Any, key: str, limit: int) -> list[dict[str, Any]]:
    """Pages come newest first, each of them oldest first."""
    found: list[dict[str, Any]] = items(f"{_path(key)}/transcript", limit, PAGE)
    return sorted(found, key=lambda entry: entry["entryNo"])


def _said(part: dict[str, Any]) -> str:
    match part["type"]:
        case "toolCall":
            return f"-> {part['name']} {json.dumps(part['args'], ensure_ascii=False)}"
        case "toolResult":
            return f"<- {part['name']}{' failed' if part['isError'] else ''}: {part['content']}"
        case "thinking":
            return f"({part['text']})"
        case _:
            return str(part.get("text", ""))


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() or char in "\n\t" else " " for char in text)


def _path(key: str) -> str:
    return f"/api/v1/sessions/{segment(key, 'KEY')}"
