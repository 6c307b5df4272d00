"""What the pages and the OpenAPI document show can be pasted, and is what the service says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.domain.event import STREAMS
from tests.kit.client import API
from tests.kit.contract import Shape, below, contract, expect, shape_of
from tests.kit.service import Service, ServiceFactory
from tests.kit.sse import Event, Parser
from tests.kit.stream_checks import CONTROL

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = contract()
PORT = ":8420/"
PASTED_S = 60.0


class Fenced(NamedTuple):
    """A fenced block of a page: the line that leads to it, what it is, and what stands in it."""

    lead: str
    kind: str
    content: str


def fenced(page: Path) -> list[Fenced]:
    """All of a page, in order."""
    pieces = re.split(r"^```(\w*)\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    told = zip(pieces[0::4], pieces[1::4], pieces[2::4], strict=False)
    return [Fenced(before.strip().rpartition("\n")[2], kind, content) for before, kind, content in told]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PASTED = {
    str(page.relative_to(ROOT)): found
    for page in PAGES
    if (found := [block for block in fenced(page) if block.kind == "sh" and re.search(r"\bcurl\b", block.content)])
}
EVENTS = ROOT / "docs" / "events.md"


# curl


@pytest.mark.sqlite
@pytest.mark.parametrize("page", PASTED)
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_every_curl_line_of_a_page_works_when_it_is_pasted(
    service: ServiceFactory, tmp_path: Path, page: str
) -> None:
    """One block after the other in one shell, as a reader would. What is no refusal by its own words is none."""
    async with service() as one:
        for block, (code, output) in zip(PASTED[page], await paste(one, tmp_path, PASTED[page]), strict=True):
            assert code == 0 and output.strip(), f"{block.content}\nended with {code}: {output}"
            refusals = [told["code"] for told in documents(output) if "detail" in told and "code" in told]
            announced = re.findall(r"answered with `([a-z-]+)`", block.lead)
            assert refusals == announced, f"{block.content}\nprinted {output}"
            for event in Parser().feed(output.encode()):
                assert CONTRACT.event_faults(event.data) == [], event.raw


async def paste(one: Service, folder: Path, blocks: list[Fenced]) -> list[tuple[int, str]]:
    """Exit code and output of each, at the address of this service."""
    lines = []
    for number, block in enumerate(blocks):
        content = block.content.replace(PORT, f":{one.address.rpartition(':')[2]}/")
        lines.append(f"{{\n{content}}} > {number}.out 2>&1\necho $? > {number}.code\n")
    (folder / "pasted.sh").write_text("".join(lines), encoding="utf-8")
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    shell = await asyncio.create_subprocess_exec("sh", "pasted.sh", cwd=folder, env=environ)
    try:
        async with asyncio.timeout(PASTED_S):
            await shell.wait()
    finally:
        if shell.returncode is None:
            shell.kill()
            await shell.wait()
    return [
        (int((folder / f"{number}.code").read_text()), (folder / f"{number}.out").read_text(encoding="utf-8"))
        for number in range(len(blocks))
    ]


def documents(output: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that were printed, which may stand one behind the other in a line."""
    decoder = json.JSONDecoder()
    at = output.find("{")
    while at >= 0:
        value, end = decoder.raw_decode(output, at)
        yield value
        at = output.find("{", end)


def test_there_are_lines_to_paste() -> None:
    assert PASTED.keys() == {"README.md", "docs/events.md", "docs/http.md"}
    text = "".join(block.content for block in PASTED["docs/http.md"])
    for part in ("/wait?", "/abort", "/events", "cursor=", "/transcript", "/audit", "Last-Event-ID"):
        assert part in text, part


# what is shown as printed


def shown(page: Path) -> list[Event]:
    """The events in the blocks of a page."""
    return [event for block in fenced(page) if not block.kind for event in Parser().feed(f"{block.content}\n".encode())]


@pytest.mark.parametrize("page", [page for page in PAGES if shown(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_event_on_a_page_is_one_of_the_document(page: Path) -> None:
    asked = expect("GET", f"{API}/runs/x/events")
    for event in shown(page):
        asked.told(event)
        assert event.event == event.stream and (event.seq is None or event.id == str(event.seq)), event.raw


def test_the_answer_that_the_readme_shows_is_one_of_the_document() -> None:
    (answer,) = [block.content for block in fenced(ROOT / "README.md") if block.kind == "json"]
    assert CONTRACT.faults({"$ref": "#/components/schemas/Accepted"}, json.loads(answer)) == []


# the page of events


def test_the_page_of_events_has_an_example_of_each() -> None:
    found = {shape_of(event.data) for event in shown(EVENTS)}
    assert found == CONTRACT.shapes.keys()
    assert {shape.stream for shape in found} == {*STREAMS, *CONTROL}


@pytest.mark.parametrize("shape", CONTRACT.shapes, ids=str)
def test_the_page_of_events_names_every_field(shape: Shape) -> None:
    """In its words or in an example, wherever the field stands in the event."""
    shown_blocks = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    page = EVENTS.read_text(encoding="utf-8")
    words = " ".join(re.findall(r"`([^`]+)`", shown_blocks.sub("", page)))
    named = {*re.findall(r'"(\w+)":', page), *re.findall(r"\b\w+\b", words)}
    missing = fields({"$ref": f"#/components/schemas/{CONTRACT.shapes[shape]}"}) - named
    assert not missing


@pytest.mark.parametrize("stream", sorted({*STREAMS, *CONTROL}))
def test_the_page_of_events_names_every_field_of_the_envelope(stream: str) -> None:
    page = EVENTS.read_text(encoding="utf-8")
    envelope = CONTRACT.schemas[f"{stream.capitalize()}Event"]
    for field in envelope["properties"]:
        assert f"\n| `{field}` |" in page, field


def fields(schema: Any) -> set[str]:
    """All names of fields in what a schema describes, at any depth."""
    found: set[str] = set()
    seen: set[str] = set()
    ahead = [schema]
    while ahead:
        for one in below(ahead.pop()):
            found |= one.get("properties", {}).keys()
            reference = one.get("$ref")
            if isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                ahead.append(CONTRACT.resolved(one))
    return found


# the document


@pytest.mark.sqlite
@pytest.mark.parametrize("name", [one.ident for one in CONTRACT.operations.values() if "requestBody" in one.told])
async def test_the_bodies_that_the_document_shows_are_accepted(shared_service: Service, name: str) -> None:
    """With each header that it shows, too."""
    operation = CONTRACT.operations[name]
    described = operation.told["requestBody"]["content"]["application/json"]["schema"]
    examples = CONTRACT.resolved(described)["examples"]
    run_id = await shared_service.run("x", "docs-bodies")
    path = operation.path.replace("{runId}", run_id).replace("{sessionKey}", "docs-bodies")
    for body in examples:
        for headers in ({}, *shown_headers(operation.told)):
            answer = await shared_service.request(operation.method, path, json=body, headers=headers)
            assert answer.status in (200, 202), (body, headers, answer)
    assert examples
    for session in ("docs-bodies", "agent:main:main", "agent:main:web-42"):
        for run in await shared_service.runs(sessionKey=session):
            await shared_service.ended(run["runId"])


def shown_headers(operation: dict[str, Any]) -> Iterator[dict[str, str]]:
    for parameter in map(CONTRACT.resolved, operation["parameters"]):
        for example in parameter["schema"].get("examples", ()) if parameter["in"] == "header" else ():
            yield {parameter["name"]: example}
