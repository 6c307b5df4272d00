"""The pages say what the code says: closed lists are complete, and links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from app.cli.main import app
from app.domain.outcome import ERROR_CODES, OUTCOMES
from app.domain.tool_call import CALL_CODES
from app.errors import LanewayError, StartError

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
HTTP = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")


def problems(above: type[LanewayError] = LanewayError) -> Iterator[type[LanewayError]]:
    """Every class that has a code of its own."""
    if "code" in vars(above):
        yield above
    for kind in above.__subclasses__():
        if kind is not StartError:
            yield from problems(kind)


def test_every_problem_code_is_documented_with_its_status() -> None:
    rows = [line for line in HTTP.splitlines() if re.match(r"\| \d{3} \|", line)]
    documented = {(code, int(row[2:5])) for row in rows for code in re.findall(r"`([a-z-]+)`", row.split("|")[2])}
    assert documented == {(kind.code, kind.status) for kind in problems()}


@pytest.mark.parametrize("code", [*OUTCOMES, *ERROR_CODES])
def test_every_outcome_is_documented(code: str) -> None:
    assert re.search(rf"^\| [^|]*`{code}`", HTTP, re.MULTILINE)


@pytest.mark.parametrize("code", CALL_CODES)
def test_every_way_in_which_a_call_ends_is_documented(code: str) -> None:
    ending = CALL_CODES[code]
    assert f"| `{ending.outcome}` | `{ending.status}` | `{code}` |" in HTTP


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_the_first_test_of_a_contributor_is_one_of_ours() -> None:
    shown = re.search(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    assert shown.group(1) == (ROOT / "tests" / "cases" / "test_first.py").read_text(encoding="utf-8")


def test_the_page_of_the_command_line_names_every_command() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8").partition("\n## ")[0]
    top = typer.main.get_command(app)
    with top.make_context("laneway", [], resilient_parsing=True) as context:
        for name in top.list_commands(context):
            command = top.resolve_command(context, [name])[1]
            inner = command.list_commands(context) if hasattr(command, "list_commands") else [""]
            for each in inner:
                assert re.search(rf"`laneway {name}\b[^|]*\b{each}\b", page), f"laneway {name} {each}"
