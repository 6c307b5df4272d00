"""The tool `read`: lines of a text file, or an image."""

from __future__ import annotations

import os
import threading
from typing import Any

from pydantic import Field

from app.domain.wellformed import whole_end
from app.tools.arguments import Arguments, parse, schema
from app.tools.contract import Image, Text, ToolContext, ToolFailed, ToolOutput, Work
from app.tools.files import SNIFF_BYTES, TIMEOUT_S, in_thread, is_binary
from app.workspace.files import Workspace

LINES_MAX = 2_000
BYTES_MAX = 256 * 1024
LINE_BYTES_MAX = 64 * 1024
"""A longer line is cut; the rest of it is passed over."""

IMAGE_BYTES_MAX = 10 * 1024 * 1024
BUFFER_BYTES = 256 * 1024

_IMAGES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class ReadArguments(Arguments):
    """What the model may say."""

    path: str = Field(description="The file, relative to the workspace.")
    offset: int = Field(1, ge=1, description="First line to read; the first of the file is 1.")
    limit: int = Field(LINES_MAX, ge=1, le=LINES_MAX, description="How many lines.")


class ReadTool:
    """See the module."""

    name = "read"
    description = (
        f"Read a text file of the workspace, at most {LINES_MAX:,} lines at a time. For a long file give offset and "
        "limit; the end of the answer says where to go on."
    )
    parameters = schema(ReadArguments)
    sequential = False

    async def prepare(self, args: dict[str, Any], context: ToolContext) -> Work:
        """Raises ArgumentsInvalid."""
        asked = parse(ReadArguments, args)
        workspace = Workspace(context.workspace)

        async def run() -> ToolOutput:
            stopped = threading.Event()
            return await in_thread(lambda: _read(workspace, asked, stopped), asked.path, stopped)

        return Work(run, TIMEOUT_S)


def _read(workspace: Workspace, asked: ReadArguments, stopped: threading.Event) -> ToolOutput:
    with workspace.open(asked.path) as (handle, found):
        sample = os.pread(handle, SNIFF_BYTES, 0)
        kind = _image(sample)
        if kind is not None:
            if found.st_size > IMAGE_BYTES_MAX:
                raise ToolFailed(f"{asked.path}: an image of {found.st_size:,} bytes; allowed are {IMAGE_BYTES_MAX:,}.")
            return ToolOutput((Image(kind, _whole(handle)),))
        if is_binary(sample):
            raise ToolFailed(f"{asked.path}: a binary file of {found.st_size:,} bytes, no text.")
        if not sample:
            return ToolOutput((Text(f"[{asked.path} is empty]"),))
        return ToolOutput((Text(_lines(handle, asked, stopped)),))


def _image(sample: bytes) -> str | None:
    """By what it is, whatever its name says."""
    if sample[:4] == b"RIFF" and sample[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _IMAGES if sample.startswith(start)), None)


def _whole(handle: int) -> bytes:
    data = bytearray()
    while len(data) <= IMAGE_BYTES_MAX and (piece := os.read(handle, BUFFER_BYTES)):
        data += piece
    return bytes(data)


def _lines(handle: int, asked: ReadArguments, stopped: threading.Event) -> str:
    """The lines asked for, in bounded memory however long the file or a line of it is."""
    kept: list[bytes] = []
    size = number = 0
    why = ""
    with os.fdopen(os.dup(handle), "rb", buffering=BUFFER_BYTES) as file:
        while not stopped.is_set() and (line := file.readline(LINE_BYTES_MAX)):
            number += 1
            rest, is_cut = line, False
            while not rest.endswith(b"\n") and len(rest) == LINE_BYTES_MAX and not stopped.is_set():
                rest = file.readline(LINE_BYTES_MAX)
                is_cut = is_cut or bool(rest)
            if number < asked.offset:
                continue
            if len(kept) == asked.limit or size + len(line) > BYTES_MAX:
                why = f"[more lines follow: go on with offset {number}]"
                break
            if is_cut:
                line = whole_end(line) + b" [... rest of the line left out]\n"
            kept.append(line)
            size += len(line)
    if not kept and not why:
        return f"[{asked.path} has {number:,} lines, none from {asked.offset:,} on]"
    data = b"".join(kept)
    text = data.decode("utf-8", "replace")
    if "\ufffd" in text and "\ufffd".encode() not in data:
        why = f"{why}\n[not all of it is UTF-8: those bytes are shown as \ufffd]".strip()
    return f"{text}{'' if text.endswith(chr(10)) or not why else chr(10)}{why}"
