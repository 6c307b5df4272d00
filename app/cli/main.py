"""The `laneway` command: names of the commands and where each one lives.

A command's module is loaded only when that command runs, so that `laneway --help` and the light commands do not
pay for the web framework and the database. What a command does stands in its own module.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from app import __version__
from app.cli.output import OutputLost, prepare_output
from app.errors import StartError


@dataclass(frozen=True, slots=True)
class _Entry:
    """A command: the module to load, and what in it is the command (a function, or a Typer app of several)."""

    name: str
    module: str
    attribute: str
    help: str


_ENTRIES = {
    entry.name: entry
    for entry in (
        _Entry("serve", "app.cli.serve", "serve", "Run the service."),
        _Entry("agent", "app.cli.agent", "agent", "Send one message to a running service and print the reply."),
        _Entry("runs", "app.cli.runs", "commands", "List, show, abort and follow runs."),
        _Entry("sessions", "app.cli.sessions", "commands", "List and show sessions, read them, and add notes."),
        _Entry("audit", "app.cli.audit", "audit", "Print the audit ledger."),
        _Entry("config", "app.cli.config", "commands", "Show the settings in force, or the reference of all settings."),
        _Entry("doctor", "app.cli.doctor", "doctor", "Check the set-up, and say what to do about what is wrong."),
        _Entry("migrate", "app.cli.migrate", "migrate", "Bring the database up to this version."),
    )
}


class _LazyGroup(TyperGroup):
    """Lists commands from the table above and loads the one that is called."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        for entry in _ENTRIES.values():
            self.add_command(TyperCommand(entry.name, help=entry.help))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, _load(_ENTRIES[name]) if name in _ENTRIES else listed, rest


def _load(entry: _Entry) -> Any:
    target = getattr(importlib.import_module(entry.module), entry.attribute)
    if not isinstance(target, typer.Typer):
        single = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
        single.command()(target)
        target = single
    return typer.main.get_command(target)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"laneway {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=_LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _laneway(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Laneway: a self-hosted agent run service."""


def main() -> None:
    """Entry point of the `laneway` script. A failure to start is one line on standard error and exit code 1."""
    prepare_output()
    try:
        try:
            app(prog_name="laneway")
        finally:
            sys.stdout.flush()
    except OutputLost as lost:
        sys.exit(lost.leave())
    except StartError as error:
        print(f"laneway: {error}", file=sys.stderr)
        sys.exit(1)
