"""Files of a workspace, by paths that nobody has checked: whatever a path says, nothing outside is read or changed.

A path is walked from a handle of the root, one component at a time, and never through a link: links are read and walked
themselves. So there is no instant in which a folder that was looked at can be exchanged for another.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

LINKS_MAX = 40
"""Links that one path may lead through, as in the kernel."""

PATH_CHARS_MAX = 4_096
DEPTH_MAX = 128
"""Folders below the root that one path may open at once: each takes a handle of the service."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FORBIDDEN = frozenset({"Cc", "Cs", "Zl", "Zp"})
_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class PathRefused(Exception):
    """The path is not one that a tool may use. The text names it, and says why."""


class Entry(NamedTuple):
    """What a folder has. `kind`: file, folder, link, other. `target`: of a link."""

    name: str
    kind: str
    size: int
    target: str = ""


class Workspace:
    """The files below one folder, which exists."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextmanager
    def open(self, path: str) -> Iterator[tuple[int, os.stat_result]]:
        """A handle for reading a regular file. Raises PathRefused, OSError."""
        with self._parent(path, make=False) as (folder, name):
            if name is None:
                raise IsADirectoryError(None, "it is a folder")
            handle = _open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, folder)
            try:
                yield handle, _regular(handle, path)
            finally:
                os.close(handle)

    def write(self, path: str, data: bytes) -> str:
        """Replace a file's content whole, or not at all. `created`, `changed` or `unchanged`. As `open`."""
        with self._parent(path, make=True) as (folder, name):
            if name is None:
                raise IsADirectoryError(None, "it is a folder")
            before = _content(name, folder, path, len(data))
            if before is not None and before.data == data:
                return "unchanged"
            # The new file belongs to the service, so bits that lend the owner's rights do not carry over.
            mode = 0o644 if before is None else before.mode & 0o777
            _replace(folder, name, data, mode)
            return "created" if before is None else "changed"

    @contextmanager
    def folder(self, path: str) -> Iterator[int]:
        """A handle of a folder. Raises PathRefused, OSError."""
        with self._parent(path, make=False) as (folder, name):
            if name is None:
                yield folder
                return
            inner = _open(name, _FOLDER, folder)
            try:
                yield inner
            finally:
                os.close(inner)

    @contextmanager
    def _parent(self, path: str, *, make: bool) -> Iterator[tuple[int, str | None]]:
        """The folder that holds what the path names, and its name there, no link; None for the root itself."""
        handles = [os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        try:
            yield self._walk(path, handles, make=make)
        finally:
            for handle in reversed(handles):
                os.close(handle)

    def _walk(self, path: str, handles: list[int], *, make: bool) -> tuple[int, str | None]:
        todo = self._components(path, path)
        links = 0
        while todo:
            name = todo.pop(0)
            if name == "..":
                if len(handles) == 1:
                    raise PathRefused(f"{_shown(path)} leads out of the workspace.")
                os.close(handles.pop())
                continue
            target = _link(name, handles[-1])
            if target is not None:
                links += 1
                if links > LINKS_MAX:
                    raise PathRefused(f"{_shown(path)} leads through too many links.")
                if target.startswith("/"):
                    while len(handles) > 1:
                        os.close(handles.pop())
                todo = [*self._components(target, path), *todo]
                continue
            if not todo:
                return handles[-1], name
            if len(handles) > DEPTH_MAX:
                raise PathRefused(f"{_shown(path)} is too deep; at most {DEPTH_MAX} folders.")
            handles.append(_enter(name, handles[-1], make=make))
        return handles[-1], None

    def _components(self, path: str, asked: str) -> list[str]:
        """The steps of a path. An absolute one must begin with the root as it is named or as it really lies."""
        if not path or len(path) > PATH_CHARS_MAX:
            raise PathRefused(f"A path has 1 to {PATH_CHARS_MAX:,} characters.")
        if any(unicodedata.category(c) in _FORBIDDEN or c in _BIDI for c in path):
            raise PathRefused("A path has no control characters and none that turn the direction of text.")
        if path.startswith("/"):
            for root in (self._root, self._root.resolve()):
                if path == str(root) or path.startswith(f"{root}/"):
                    path = path[len(str(root)) :]
                    break
            else:
                raise PathRefused(f"{_shown(asked)} leads out of the workspace.")
        return [step for step in path.split("/") if step not in ("", ".")]


def entries(folder: int) -> list[Entry]:
    """What a folder has, by name."""
    found: list[Entry] = []
    with os.scandir(folder) as scan:
        for item in scan:
            kind, size, target = "other", 0, ""
            with contextlib.suppress(OSError):
                if item.is_symlink():
                    kind, target = "link", os.readlink(item.name, dir_fd=folder)
                elif item.is_dir(follow_symlinks=False):
                    kind = "folder"
                elif item.is_file(follow_symlinks=False):
                    kind, size = "file", item.stat(follow_symlinks=False).st_size
            found.append(Entry(item.name, kind, size, target))
    return sorted(found)


class _Content(NamedTuple):
    """`data` is None where the size alone tells that it is another one."""

    data: bytes | None
    mode: int


def _content(name: str, folder: int, path: str, size: int) -> _Content | None:
    """What a file has, as far as it must be known to tell whether it changes; None when there is no file."""
    try:
        handle = _open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, folder)
    except FileNotFoundError:
        return None
    try:
        found = _regular(handle, path)
        data = None
        if found.st_size == size:
            data = b""
            while len(data) <= size and (piece := os.read(handle, 1 << 20)):
                data += piece
        return _Content(data, stat.S_IMODE(found.st_mode))
    finally:
        os.close(handle)


def _replace(folder: int, name: str, data: bytes, mode: int) -> None:
    fresh = f".{secrets.token_hex(8)}.tmp"
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(handle, left) :]
            os.fchmod(handle, mode)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.rename(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh, dir_fd=folder)
        raise


def _regular(handle: int, path: str) -> os.stat_result:
    found = os.fstat(handle)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(None, "it is a folder")
    if not stat.S_ISREG(found.st_mode):
        raise PathRefused(f"{_shown(path)} is no regular file.")
    if found.st_nlink > 1:
        raise PathRefused(f"{_shown(path)} has several names, so it may be a file outside of the workspace.")
    return found


def _link(name: str, folder: int) -> str | None:
    """Where a link leads; None when the name is none, or nothing."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return None


def _enter(name: str, folder: int, *, make: bool) -> int:
    try:
        return _open(name, _FOLDER, folder)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
    return _open(name, _FOLDER, folder)


def _open(name: str, flags: int, folder: int) -> int:
    return os.open(name, flags, dir_fd=folder)


def _shown(path: str) -> str:
    return repr(path if len(path) <= 200 else f"{path[:200]}...")
