"""What the file tools share: work in a thread, problems of the file system in words, text from bytes."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from typing import TypeVar

from app.tools.contract import ToolFailed
from app.workspace.files import PathRefused

T = TypeVar("T")

TIMEOUT_S = 60.0
SNIFF_BYTES = 8_192
TEXT_BYTES_MAX = 4 * 1024 * 1024
"""Largest file that is written or edited."""

UNDECODABLE_SHARE = 0.1

_WORDS = {
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "it is a folder",
    errno.EACCES: "the service may not read or write it",
    errno.EPERM: "the service may not do that",
    errno.ENOSPC: "the disk is full",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "it is a link that changed meanwhile",
    errno.ENXIO: "it is no regular file",
}


async def in_thread(work: Callable[[], T], path: str, stopped: threading.Event | None = None) -> T:
    """Do blocking work on files. Raises ToolFailed in place of what the file system says.

    A cancellation sets `stopped`, for work that can end early, and comes through once the work is over: nothing is
    changed behind the back of who was told that it ended.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if stopped is not None:
            stopped.set()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # the call is cancelled, whatever came of its work
        raise
    except PathRefused as problem:
        raise ToolFailed(str(problem)) from None
    except OSError as problem:
        words = "it is a folder" if isinstance(problem, IsADirectoryError) else _WORDS.get(problem.errno or 0)
        raise ToolFailed(f"{path[:200]}: {words or problem.strerror or 'it cannot be used'}.") from None


def is_binary(sample: bytes) -> bool:
    """Judged by the first `SNIFF_BYTES`: NUL bytes, or much that is no text in UTF-8."""
    if b"\0" in sample:
        return True
    undecodable = sample.decode("utf-8", "replace").count("\ufffd")
    return len(sample) > 16 and undecodable > len(sample) * UNDECODABLE_SHARE
