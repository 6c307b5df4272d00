"""Whatever a path says, the file tools read and change nothing outside the workspace."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.tools.contract import Tool, ToolFailed
from app.tools.edit import EditTool
from app.tools.list import ListTool
from app.tools.read import ReadTool
from app.tools.search_files import SearchFilesTool
from app.tools.write import WriteTool
from app.workspace.files import PathRefused, Workspace
from app.workspace.root import WorkspaceUnusable, make_workspace
from tests.kit.tool_context import said

SECRET = "what nobody may see"

ARGUMENTS: dict[str, tuple[Tool, dict[str, str]]] = {
    "read": (ReadTool(), {}),
    "write": (WriteTool(), {"content": "overwritten"}),
    "edit": (EditTool(), {"oldText": SECRET, "newText": "overwritten"}),
    "list": (ListTool(), {}),
    "search_files": (SearchFilesTool(), {"pattern": "nobody"}),
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A workspace with ways out of it, and a folder outside with a secret, which must be untouched at the end."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    root = tmp_path / "workspace"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "inner.txt").write_text("inner")
    (root / "file-out").symlink_to(outside / "secret.txt")
    (root / "folder-out").symlink_to(outside)
    (root / "relative-out").symlink_to("../outside/secret.txt")
    (root / "chain-1").symlink_to("chain-2")
    (root / "chain-2").symlink_to("sub/../../outside/secret.txt")
    (root / "loop-1").symlink_to("loop-2")
    (root / "loop-2").symlink_to("loop-1")
    (root / "sub" / "up-out").symlink_to("../../outside")
    os.link(outside / "secret.txt", root / "hard")
    os.mkfifo(root / "pipe")
    (root / "zero").symlink_to("/dev/zero")
    yield root
    assert sorted(path.name for path in outside.iterdir()) == ["secret.txt"]
    assert (outside / "secret.txt").read_text() == SECRET


HOSTILE = [
    "../outside/secret.txt",
    "sub/../../outside/secret.txt",
    "/etc/passwd",
    "//etc/passwd",
    "../outside",
    "..",
    "../..",
    "file-out",
    "folder-out/secret.txt",
    "folder-out",
    "relative-out",
    "chain-1",
    "loop-1",
    "sub/up-out/secret.txt",
    "folder-out/new.txt",
    "sub/up-out/new/deep.txt",
    "hard",
    "pipe",
    "zero",
    "",
    "\0",
    "a\0b",
    "sub/\n",
    "a\u202eb",
    "sub\x1b[2J",
    "x" * 5000,
    "/" + "x" * 300,
    "../workspace-evil/x",
    "sub/inner.txt/below",
    "sub/inner.txt/..",
]


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: repr(path)[:40])
@pytest.mark.parametrize("name", ARGUMENTS)
async def test_no_path_leads_out(place: Path, name: str, path: str) -> None:
    tool, more = ARGUMENTS[name]
    with contextlib.suppress(ToolFailed):
        text = await said(tool, place, path=path, **more)
        assert SECRET not in text and "root:" not in text and "secret.txt" not in text
    assert not (place.parent / "workspace-evil").exists()


async def test_an_absolute_path_of_another_root_that_begins_alike_is_refused(place: Path) -> None:
    (place.parent / "workspace-2").mkdir()
    (place.parent / "workspace-2" / "x").write_text(SECRET)
    with pytest.raises(ToolFailed, match="leads out"):
        await said(ReadTool(), place, path=f"{place}-2/x")


@pytest.mark.parametrize(
    "path", ["sub/inner.txt", "./sub//inner.txt", "sub/../sub/inner.txt", "link", "to-sub/inner.txt"]
)
async def test_what_stays_inside_works(place: Path, path: str) -> None:
    (place / "link").symlink_to("sub/inner.txt")
    (place / "to-sub").symlink_to(place / "sub")
    assert await said(ReadTool(), place, path=path) == "inner"
    assert await said(ReadTool(), place, path=f"{place}/{path}") == "inner"


async def test_writing_through_a_link_that_stays_inside_changes_its_file(place: Path) -> None:
    (place / "link").symlink_to("sub/inner.txt")
    assert "changed" in await said(WriteTool(), place, path="link", content="new")
    assert (place / "sub" / "inner.txt").read_text() == "new" and (place / "link").is_symlink()


async def test_folders_that_are_missing_are_made_and_nothing_is_left_of_a_failure(place: Path) -> None:
    assert "created" in await said(WriteTool(), place, path="a/b/c.txt", content="x")
    assert (place / "a" / "b" / "c.txt").read_text() == "x"
    with pytest.raises(ToolFailed, match="is a folder"):
        await said(WriteTool(), place, path="a/b", content="x")
    assert not list(place.rglob("*.tmp"))


async def test_a_file_keeps_its_mode_and_an_unchanged_one_is_not_written(place: Path) -> None:
    script = place / "script.sh"
    script.write_text("echo 1\n")
    script.chmod(0o750)
    assert "changed" in await said(WriteTool(), place, path="script.sh", content="echo 2\n")
    assert script.stat().st_mode & 0o777 == 0o750
    before = script.stat()
    assert "unchanged" in await said(WriteTool(), place, path="script.sh", content="echo 2\n")
    assert script.stat().st_ino == before.st_ino and script.stat().st_mtime_ns == before.st_mtime_ns


async def test_the_root_itself_is_never_replaced(place: Path) -> None:
    for path in (".", "sub/..", str(place), f"{place}/"):
        with pytest.raises(ToolFailed, match="folder"):
            await said(WriteTool(), place, path=path, content="x")
    assert place.is_dir()


def test_a_folder_that_is_exchanged_for_a_link_again_and_again_leads_nowhere(place: Path) -> None:
    """Between any two steps of a walk somebody else may put a link in the way."""
    outside = place.parent / "outside"
    real, link, slot = place / "real", place / "linked", place / "slot"
    real.mkdir()
    (real / "secret.txt").write_text("harmless")
    link.symlink_to(outside)
    real.rename(slot)
    stop = threading.Event()
    exchanged = 0

    def put(one: Path, other_place: Path) -> None:
        while True:
            try:
                one.rename(other_place)
            except OSError:  # a writer has made the folder that was missing for an instant
                shutil.rmtree(other_place, ignore_errors=True)
            else:
                return

    def exchange() -> None:
        nonlocal exchanged
        spare = place / "spare"
        while not stop.is_set():
            for one, other_place in ((slot, spare), (link, slot), (slot, link), (spare, slot)):
                put(one, other_place)
            exchanged += 1

    other = threading.Thread(target=exchange)
    other.start()
    workspace = Workspace(place)
    read = 0
    try:
        while read < 100 or exchanged < 1_000:
            with contextlib.suppress(OSError, PathRefused), workspace.open("slot/secret.txt") as (handle, _):
                assert os.read(handle, 100) == b"harmless"
                read += 1
            with contextlib.suppress(OSError, PathRefused):
                workspace.write("slot/new.txt", str(exchanged).encode())
    finally:
        stop.set()
        other.join()


def test_a_new_workspace_has_a_readme_and_an_old_one_is_left_alone(tmp_path: Path) -> None:
    fresh = tmp_path / "a" / "b"
    make_workspace(fresh)
    assert "workspace" in (fresh / "README.md").read_text() and fresh.stat().st_mode & 0o777 == 0o700
    (fresh / "README.md").unlink()
    make_workspace(fresh)
    assert list(fresh.iterdir()) == []
    (tmp_path / "file").write_text("x")
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(WorkspaceUnusable):
            make_workspace(wrong)
