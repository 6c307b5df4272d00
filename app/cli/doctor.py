"""`laneway doctor`: whether the set-up works, and what to do about what does not."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.cli.checks import Finding, Level, findings
from app.cli.remote import JsonOption
from app.cli.tables import print_json
from app.errors import SettingsError
from app.settings import load


def doctor(
    config: Annotated[Path | None, typer.Option(help="The laneway.toml to read.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where everything durable lives.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check the set-up; changes nothing. Exit code 1 when there is a problem."""
    try:
        found = list(findings(load(config, os.environ, {"state_dir": state_dir})))
    except SettingsError as problem:
        found = [Finding("settings", Level.PROBLEM, str(problem), "nothing else was checked")]
    problems = sum(one.level is Level.PROBLEM for one in found)
    if as_json:
        print_json({"findings": [asdict(one) for one in found], "problems": problems})
    else:
        _print(found)
    if problems:
        raise typer.Exit(1)


def _print(found: list[Finding]) -> None:
    wide = max(len(one.subject) for one in found)
    for one in found:
        print(f"{one.level:<7}  {one.subject:<{wide}}  {_line(one.text)}")
        if one.hint:
            print(f"{'':<7}  {'':<{wide}}  -> {_line(one.hint)}")


def _line(text: str) -> str:
    """One line, whatever a server has said."""
    return "".join(char if char.isprintable() else " " for char in text)
