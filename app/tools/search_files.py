"""The tool `search_files`: lines of the workspace's files that have a text in them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field

from app.tools.arguments import Arguments, parse, schema
from app.tools.contract import ArgumentsInvalid, Text, ToolContext, ToolOutput, Work
from app.tools.files import SNIFF_BYTES, TIMEOUT_S, in_thread, is_binary
from app.workspace.files import Workspace, entries

RESULTS_MAX = 200
LINE_CHARS = 300
FILE_BYTES_MAX = 4 * 1024 * 1024
FILES_MAX = 50_000
SECONDS_MAX = 20.0
DEPTH_MAX = 64
SKIPPED = frozenset({".git", "node_modules"})
"""Folders that are searched only when the path names them."""

REGEX_BYTES_MAX = 1024 * 1024
LINE_CHARS_MATCHED = 65_536
"""Memory of one compiled expression, and how much of a line is looked at: what they cost together is bounded."""

Matches = Callable[[str], bool]


class SearchArguments(Arguments):
    """What the model may say."""

    pattern: str = Field(min_length=1, max_length=1_000, description="The text to look for, within a line.")
    path: str = Field(".", description="File or folder to search, relative to the workspace.")
    glob: str = Field("", max_length=200, description="Only files whose name fits, such as *.py.")
    regex: bool = Field(False, description="pattern is a regular expression (RE2 syntax).")
    ignoreCase: bool = Field(False, description="Upper and lower case do not count.")
    maxResults: int = Field(100, ge=1, le=RESULTS_MAX, description="How many lines at most.")


class SearchFilesTool:
    """See the module."""

    name = "search_files"
    description = (
        "Search the text files of the workspace for lines that hold a text, or match a regular expression. Returns "
        f"path:line: text, at most {RESULTS_MAX} lines."
    )
    parameters = schema(SearchArguments)
    sequential = False

    async def prepare(self, args: dict[str, Any], context: ToolContext) -> Work:
        """Raises ArgumentsInvalid."""
        asked = parse(SearchArguments, args)
        matches = await asyncio.to_thread(_matcher, asked)
        workspace = Workspace(context.workspace)

        async def run() -> ToolOutput:
            search = _Search(asked, matches)
            return await in_thread(lambda: search.run(workspace), asked.path, search.stopped)

        return Work(run, TIMEOUT_S)


def _matcher(asked: SearchArguments) -> Matches:
    if asked.regex:
        return _expression(asked)
    if asked.ignoreCase:
        wanted = asked.pattern.casefold()
        return lambda line: wanted in line.casefold()
    return lambda line: asked.pattern in line


def _expression(asked: SearchArguments) -> Matches:
    """RE2: linear in the text, so that no pattern can hold up the service. Loaded when first needed."""
    import re2

    options = re2.Options()
    options.case_sensitive = not asked.ignoreCase
    options.log_errors = False
    options.max_mem = REGEX_BYTES_MAX
    try:
        compiled = re2.compile(asked.pattern, options)
    except re2.error as problem:
        words = problem.args[0].decode(errors="replace") if isinstance(problem.args[0], bytes) else problem.args[0]
        raise ArgumentsInvalid(f"pattern: no regular expression of RE2 syntax: {words}.") from None
    return lambda line: compiled.search(line) is not None


@dataclass
class _Search:
    """One search, in a thread. `stopped` ends it early."""

    asked: SearchArguments
    matches: Matches
    stopped: threading.Event = field(default_factory=threading.Event)
    found: list[str] = field(default_factory=list)
    files: int = 0
    passed_over: int = 0
    end: str = ""
    _deadline: float = 0.0

    def run(self, workspace: Workspace) -> ToolOutput:
        self._deadline = time.monotonic() + SECONDS_MAX
        base = "" if self.asked.path in (".", "./") else self.asked.path.rstrip("/")
        try:
            with workspace.folder(self.asked.path) as folder:
                for _ in self._folder(folder, f"{base}/" if base else "", 0):
                    if self._is_over():
                        break
        except NotADirectoryError:
            with workspace.open(self.asked.path) as (handle, _):
                self._file(handle, self.asked.path)
                self._is_over()
        notes = [self.end] if self.end else []
        if self.passed_over:
            notes.append(f"[{self.passed_over:,} binary, large or unreadable files were passed over]")
        if not self.found:
            notes.insert(0, f"[no line found in {self.files:,} files]")
        return ToolOutput((Text("\n".join([*self.found, *notes])),))

    def _is_over(self) -> bool:
        if len(self.found) >= self.asked.maxResults:
            self.end = f"[stopped at {self.asked.maxResults} lines: narrow the search]"
        elif self.files >= FILES_MAX:
            self.end = f"[stopped after {FILES_MAX:,} files: name a folder]"
        elif time.monotonic() > self._deadline:
            self.end = f"[stopped after {SECONDS_MAX:g} s: name a folder]"
        return bool(self.end) or self.stopped.is_set()

    def _folder(self, folder: int, above: str, depth: int) -> Iterator[None]:
        """Yields behind each entry, so that a walk on which no file fits is bounded too."""
        for entry in entries(folder):
            name = f"{above}{entry.name}"
            if entry.kind == "file" and (not self.asked.glob or fnmatchcase(entry.name, self.asked.glob)):
                self._entry(entry.name, entry.size, folder, name)
            elif entry.kind == "folder" and entry.name not in SKIPPED and depth < DEPTH_MAX:
                try:
                    inner = os.open(
                        entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder
                    )
                except OSError:
                    self.passed_over += 1
                    continue
                try:
                    yield from self._folder(inner, f"{name}/", depth + 1)
                finally:
                    os.close(inner)
            yield

    def _entry(self, name: str, size: int, folder: int, shown: str) -> None:
        if size > FILE_BYTES_MAX:
            self.passed_over += 1
            return
        try:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            self.passed_over += 1
            return
        try:
            if os.fstat(handle).st_nlink > 1:
                self.passed_over += 1  # it may be a file outside
            else:
                self._file(handle, shown)
        finally:
            os.close(handle)

    def _file(self, handle: int, shown: str) -> None:
        data = b""
        while len(data) <= FILE_BYTES_MAX and (piece := os.read(handle, 1 << 20)):
            data += piece
        if len(data) > FILE_BYTES_MAX or is_binary(data[:SNIFF_BYTES]):
            self.passed_over += 1
            return
        self.files += 1
        for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), start=1):
            if self.matches(line[:LINE_CHARS_MATCHED]):
                text = line.strip()
                cut = text[:LINE_CHARS] + (" ..." if len(text) > LINE_CHARS else "")
                self.found.append(f"{shown}:{number}: {cut}")
                if len(self.found) >= self.asked.maxResults or self.stopped.is_set():
                    return
