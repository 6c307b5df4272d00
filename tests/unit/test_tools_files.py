"""The file tools on ordinary and odd files: what they return, where they stop, and what they say then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.tools import read, search_files
from app.tools.contract import ArgumentsInvalid, ToolFailed
from app.tools.edit import EditTool
from app.tools.list import ListTool
from app.tools.read import ReadTool
from app.tools.search_files import SearchFilesTool
from app.tools.write import WriteTool
from tests.kit.tool_context import Context, said

READ, WRITE, EDIT, LIST, SEARCH = ReadTool(), WriteTool(), EditTool(), ListTool(), SearchFilesTool()


async def test_lines_are_read_from_where_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("".join(f"line {n}\n" for n in range(1, 5001)))
    whole = await said(READ, tmp_path, path="f")
    assert whole.startswith("line 1\n") and whole.endswith("line 2000\n[more lines follow: go on with offset 2001]")
    assert await said(READ, tmp_path, path="f", offset=4999) == "line 4999\nline 5000\n"
    assert await said(READ, tmp_path, path="f", offset=3, limit=2) == (
        "line 3\nline 4\n[more lines follow: go on with offset 5]"
    )
    assert await said(READ, tmp_path, path="f", offset=6000) == "[f has 5,000 lines, none from 6,000 on]"


async def test_long_lines_large_files_and_empty_ones(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    assert await said(READ, tmp_path, path="empty") == "[empty is empty]"
    (tmp_path / "long").write_text("x" * 1_000_000 + "\nend\n")
    text = await said(READ, tmp_path, path="long")
    assert "rest of the line left out" in text and text.endswith("end\n") and len(text) < 70_000
    (tmp_path / "large").write_text(("y" * 999 + "\n") * 1000)
    text = await said(READ, tmp_path, path="large")
    assert len(text) <= read.BYTES_MAX + 100 and "go on with offset 263" in text
    assert (await said(READ, tmp_path, path="large", offset=263, limit=1)).startswith("yyy")


async def test_what_is_no_text_is_told_and_images_are_images(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"abc\0def")
    with pytest.raises(ToolFailed, match="binary file of 7 bytes"):
        await said(READ, tmp_path, path="b")
    (tmp_path / "noise.png").write_bytes(bytes(range(128, 256)) * 20)
    with pytest.raises(ToolFailed, match="binary"):
        await said(READ, tmp_path, path="noise.png")
    (tmp_path / "picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 50)
    assert await said(READ, tmp_path, path="picture.txt") == "image/png"
    (tmp_path / "mixed").write_bytes(b"good text, much of it, and one bad byte \xff here\n")
    assert "not all of it is UTF-8" in await said(READ, tmp_path, path="mixed")
    (tmp_path / "huge.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 11_000_000)
    with pytest.raises(ToolFailed, match="allowed are"):
        await said(READ, tmp_path, path="huge.png")


async def test_problems_are_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path, words in (("nothing", "no such file"), ("folder", "is a folder"), ("folder/x/y", "no such file")):
        with pytest.raises(ToolFailed, match=words):
            await said(READ, tmp_path, path=path)
    for arguments, words in (
        ({}, "path: field required"),
        ({"path": 1}, "path"),
        ({"path": "x", "offset": 0}, "offset"),
        ({"path": "x", "line": 1}, "'line' is not an argument; there are path, offset, limit"),
    ):
        with pytest.raises(ArgumentsInvalid, match=words):
            await READ.prepare(arguments, Context(tmp_path))


async def test_an_edit_changes_the_one_place_that_is_meant(tmp_path: Path) -> None:
    file = tmp_path / "f.py"
    file.write_text("a = 1\nb = 1\n")
    assert await said(EDIT, tmp_path, path="f.py", oldText="b = 1", newText="b = 2") == "f.py: changed in line 2."
    assert file.read_text() == "a = 1\nb = 2\n"
    file.write_text("x\nx\nx\n")
    with pytest.raises(ToolFailed, match="3 times"):
        await said(EDIT, tmp_path, path="f.py", oldText="x", newText="y")
    assert "3 places" in await said(EDIT, tmp_path, path="f.py", oldText="x", newText="y", replaceAll=True)
    assert file.read_text() == "y\ny\ny\n"
    for arguments, words in (
        ({"oldText": "z", "newText": "q"}, "does not stand"),
        ({"oldText": "y", "newText": "y"}, "same"),
    ):
        with pytest.raises(ToolFailed, match=words):
            await said(EDIT, tmp_path, path="f.py", **arguments)
    with pytest.raises(ArgumentsInvalid, match="oldText"):
        await said(EDIT, tmp_path, path="f.py", oldText="", newText="x")


async def test_an_edit_keeps_line_ends_and_byte_order_marks(tmp_path: Path) -> None:
    file = tmp_path / "dos.txt"
    file.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree\r\n")
    await said(EDIT, tmp_path, path="dos.txt", oldText="one\ntwo", newText="1\n2")
    assert file.read_bytes() == b"\xef\xbb\xbf1\r\n2\r\nthree\r\n"


async def test_too_much_to_write_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    with pytest.raises(ArgumentsInvalid, match="allowed are"):
        await said(WRITE, tmp_path, path="f", content="x" * (4 * 1024 * 1024 + 1))
    assert list(tmp_path.iterdir()) == []


async def test_a_folder_is_listed_with_sizes_links_and_depth(tmp_path: Path) -> None:
    assert await said(LIST, tmp_path) == "[. is empty]"
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "inner").write_text("12345")
    (tmp_path / "a.txt").write_text("x" * 1234)
    (tmp_path / "link").symlink_to("a.txt")
    assert await said(LIST, tmp_path) == "a.txt (1,234)\nb/\nlink -> a.txt"
    assert await said(LIST, tmp_path, depth=2) == "a.txt (1,234)\nb/\nb/inner (5)\nlink -> a.txt"
    assert await said(LIST, tmp_path, path="b") == "inner (5)"
    for number in range(600):
        (tmp_path / "b" / f"{number:03}").write_text("")
    text = await said(LIST, tmp_path, path="b")
    assert text.count("\n") == 500 and "[101 more" in text


async def test_lines_are_found_by_text_and_by_expression(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("def one():\n    return TWO\n")
    (tmp_path / "src" / "b.txt").write_text("def two(): (a+)+b\n")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "c.py").write_text("def hidden(): pass\n")
    (tmp_path / "binary").write_bytes(b"def \0")
    assert (await said(SEARCH, tmp_path, pattern="def ")).splitlines() == [
        "src/a.py:1: def one():",
        "src/b.txt:1: def two(): (a+)+b",
        "[1 binary, large or unreadable files were passed over]",
    ]
    assert await said(SEARCH, tmp_path, pattern="def", glob="*.py", path="src") == "src/a.py:1: def one():"
    assert await said(SEARCH, tmp_path, pattern="two", ignoreCase=True, path="src/a.py") == "src/a.py:2: return TWO"
    assert "a.py:1" in await said(SEARCH, tmp_path, pattern=r"^def \w+\(\):$", regex=True)
    assert "hidden" in await said(SEARCH, tmp_path, pattern="hidden", path="node_modules")
    assert "[no line found in 2 files]" in await said(SEARCH, tmp_path, pattern="nowhere")
    with pytest.raises(ArgumentsInvalid, match="RE2"):
        await said(SEARCH, tmp_path, pattern="(", regex=True)


async def test_no_pattern_holds_up_a_search(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a" * 100_000)
    assert "[no line found" in await said(SEARCH, tmp_path, pattern="(a+)+b", regex=True)


async def test_bounds_of_a_search_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        (tmp_path / f"{number}").write_text("hit " * 200)
    text = await said(SEARCH, tmp_path, pattern="hit", maxResults=5)
    assert text.count("hit hit") >= 5 and "stopped at 5 lines" in text and len(text) < 2_500
    monkeypatch.setattr(search_files, "FILES_MAX", 10)
    assert "stopped after 10 files" in await said(SEARCH, tmp_path, pattern="no hit")


async def test_a_search_that_is_stopped_ends_its_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        (tmp_path / f"{number}").write_text("x\n" * 1000)
    seen = asyncio.Event()
    searched: list[search_files._Search] = []
    loop = asyncio.get_running_loop()
    original = search_files._Search._file

    def slow(self: search_files._Search, handle: int, shown: str) -> None:
        if not searched:
            searched.append(self)
            loop.call_soon_threadsafe(seen.set)
            self.stopped.wait(10)
        original(self, handle, shown)

    monkeypatch.setattr(search_files._Search, "_file", slow)
    task = asyncio.create_task(said(SEARCH, tmp_path, pattern="nowhere"))
    await seen.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(lambda: None)
    assert searched[0].stopped.is_set() and searched[0].files < 5
