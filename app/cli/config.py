"""`laneway config`: what is in force and where it came from, and the printed reference of all settings.

Secrets are never shown. Reading and checking settings is `app.settings`; how the reference page looks is `reference`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.reference import page
from app.cli.tables import print_json
from app.settings import describe, effective, load

commands = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Show the settings in force, or the reference of all settings.",
)


@commands.command()
def show(
    config: Annotated[Path | None, typer.Option("--config", help="The settings file to read.")] = None,
    state_dir: Annotated[Path | None, typer.Option("--state-dir", help="The state directory.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: key to value and source.")] = False,
) -> None:
    """Print every setting with its value and where it came from."""
    loaded = load(config, os.environ, {"state_dir": state_dir}, secrets=False)
    for warning in loaded.warnings:
        print(f"laneway: {warning}", file=sys.stderr)
    listed = effective(loaded)
    if as_json:
        print_json({key: {"value": value, "source": source} for key, value, source in listed})
        return
    lines = [(f"{key} = {_shown(value)}", source) for key, value, source in listed]
    width = min(60, max(len(text) for text, _ in lines))
    for text, source in lines:
        print(f"{text:<{width}}  # {source}")


@commands.command()
def reference() -> None:
    """Print the reference of all settings as Markdown."""
    print(page(describe()), end="")


def _shown(value: Any) -> str:
    """A value the way TOML writes it; nothing for what is not set."""
    return "-" if value is None else json.dumps(value, default=str, ensure_ascii=False)
