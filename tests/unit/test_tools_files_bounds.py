"""The file tools where they stop: cancelled, too deep, too large, in the middle of a character or a line end."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from app.tools import read, search_files
from app.tools.contract import ToolFailed
from app.tools.edit import EditTool
from app.tools.read import ReadTool
from app.tools.search_files import SearchFilesTool
from app.tools.write import WriteTool
from app.workspace import files
from tests.kit.tool_context import said

READ, WRITE, EDIT, SEARCH = ReadTool(), WriteTool(), EditTool(), SearchFilesTool()


async def test_a_cancelled_write_is_over_when_the_cancellation_comes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    replace = files._replace

    def held(folder: int, name: str, data: bytes, mode: int) -> None:
        loop.call_soon_threadsafe(began.set)
        assert go_on.wait(30)
        replace(folder, name, data, mode)

    monkeypatch.setattr(files, "_replace", held)
    task = asyncio.create_task(said(WRITE, tmp_path, path="f", content="x"))
    await began.wait()
    task.cancel()
    await asyncio.wait({task}, timeout=0.2)
    was_done_early = task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not was_done_early and (tmp_path / "f").read_text() == "x"


async def test_a_cancelled_read_of_a_line_without_end_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "hole").open("wb") as file:
        file.write(b"text\n" * 4_000)
        file.truncate(1 << 40)
    began = asyncio.Event()
    loop = asyncio.get_running_loop()
    lines = read._lines

    def told(handle: int, asked: read.ReadArguments, stopped: threading.Event) -> str:
        loop.call_soon_threadsafe(began.set)
        return lines(handle, asked, stopped)

    monkeypatch.setattr(read, "_lines", told)
    task = asyncio.create_task(said(READ, tmp_path, path="hole", offset=4_500))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task  # comes only once the thread has ended, which a terabyte would keep for minutes


async def test_a_search_in_which_no_name_fits_is_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "f.txt").write_text("x")
    monkeypatch.setattr(search_files, "SECONDS_MAX", -1.0)
    assert "stopped after" in await said(SEARCH, tmp_path, pattern="x", glob="*.none")


async def test_the_bound_of_lines_is_told_for_a_single_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("hit\n" * 50)
    assert "stopped at 5 lines" in await said(SEARCH, tmp_path, pattern="hit", path="f", maxResults=5)


async def test_an_edit_that_would_grow_too_large_is_refused_before_it_is_made(
    tmp_path: Path,
) -> None:
    """32 TB, so that making it first is a MemoryError at once and no slow death."""
    (tmp_path / "f").write_text("a" * (4 * 1024 * 1024))
    with pytest.raises(ToolFailed, match="would have"):
        await said(EDIT, tmp_path, path="f", oldText="a", newText="b" * 8_000_000, replaceAll=True)


@pytest.mark.parametrize(
    ("old", "new", "after"),
    [
        ("one", "1\n1b", b"1\r\n1b\r\ntwo\r\n"),
        ("one\ntwo", "1\r\n2", b"1\r\n2\r\n"),
        ("one\r\ntwo", "1\n2", b"1\r\n2\r\n"),
    ],
)
async def test_what_an_edit_puts_in_has_the_line_ends_of_the_file(
    tmp_path: Path, old: str, new: str, after: bytes
) -> None:
    (tmp_path / "f").write_bytes(b"one\r\ntwo\r\n")
    await said(EDIT, tmp_path, path="f", oldText=old, newText=new)
    assert (tmp_path / "f").read_bytes() == after


@pytest.mark.parametrize("character", ["\u00e9", "\u20ac", "\U0001f600"])
@pytest.mark.parametrize("shift", range(4))
async def test_a_long_line_is_cut_between_characters(tmp_path: Path, character: str, shift: int) -> None:
    (tmp_path / "f").write_text("x" * shift + character * 70_000 + "\n", encoding="utf-8")
    text = await said(READ, tmp_path, path="f")
    assert "\ufffd" not in text and text.endswith("rest of the line left out]\n")


async def test_a_line_that_just_fits_is_not_said_to_be_cut(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x" * read.LINE_BYTES_MAX)
    assert "left out" not in await said(READ, tmp_path, path="f")


async def test_a_path_takes_a_bounded_number_of_handles(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="too deep"):
        await said(WRITE, tmp_path, path="a/" * 200 + "f", content="x")


async def test_a_write_does_not_lend_rights(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a")
    (tmp_path / "f").chmod(0o4755)
    await said(WRITE, tmp_path, path="f", content="b")
    assert (tmp_path / "f").stat().st_mode & 0o7777 == 0o755


async def test_a_search_of_everything_passes_over_hard_links_and_links(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside").write_text("what nobody may see")
    os.link(tmp_path / "outside", root / "hard")
    (root / "link").symlink_to(tmp_path / "outside")
    assert "nobody" not in await said(SEARCH, root, pattern="nobody")


async def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ToolFailed, match="disk is full"):
        await said(WRITE, tmp_path, path="f", content="new")
    assert [path.name for path in tmp_path.iterdir()] == ["f"] and (tmp_path / "f").read_text() == "old"


@pytest.mark.parametrize(("links", "works"), [(40, True), (41, False)])
async def test_a_chain_of_links_has_its_bound(tmp_path: Path, links: int, works: bool) -> None:
    (tmp_path / "l0").write_text("end")
    for number in range(1, links + 1):
        (tmp_path / f"l{number}").symlink_to(f"l{number - 1}")
    if works:
        assert await said(READ, tmp_path, path=f"l{links}") == "end"
    else:
        with pytest.raises(ToolFailed, match="too many links"):
            await said(READ, tmp_path, path=f"l{links}")


async def test_a_link_put_in_the_way_after_the_look_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look finds no link, as it does when one is put there a moment later."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "f").write_text("what nobody may see")
    (root / "file").symlink_to(outside / "f")
    (root / "folder").symlink_to(outside)
    monkeypatch.setattr(files, "_link", lambda *_: None)
    for path in ("file", "folder/f"):
        with pytest.raises(ToolFailed):
            await said(READ, root, path=path)
        with pytest.raises(ToolFailed):
            await said(WRITE, root, path=path, content="overwritten")
    assert (outside / "f").read_text() == "what nobody may see"
