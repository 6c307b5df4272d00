"""`Browser`: a real, headless Chromium with one tab, driven over its own pipe by the DevTools protocol.

The pipe needs neither a port nor a client library, and the browser ends when the test's end of it closes, however
the test ended.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import itertools
import os
import shutil
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
REQUIRED = "TEST_REQUIRE_SYSTEM"
"""The variable under which a browser that is missing is a failure."""

_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")
_READS, _WRITES = 3, 4
"""The descriptors on which Chromium expects the pipe."""

_LAUNCH = (
    "import os, sys\n"
    f"os.dup2(int(sys.argv[1]), {_READS})\n"
    f"os.dup2(int(sys.argv[2]), {_WRITES})\n"
    "os.execv(sys.argv[3], sys.argv[3:])\n"
)
_MESSAGE_BYTES_MAX = 64 * 1024 * 1024


def chromium() -> str:
    """Where it is. Skips the test when it is nowhere, or fails it where `TEST_REQUIRE_SYSTEM` is set."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    missing = "there is no Chromium; `make system-deps` installs it"
    if os.environ.get(REQUIRED):
        pytest.fail(missing)
    pytest.skip(missing)


class PageError(AssertionError):
    """What the page or the protocol said no to."""


class Browser:
    """Use as `async with Browser(tmp_path / "browser") as browser`. `complaints`: errors in the page's console."""

    def __init__(self, profile: Path) -> None:
        self.complaints: list[str] = []
        self._profile = profile
        self._log = profile.with_name(profile.name + ".log")
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session: str | None = None

    async def __aenter__(self) -> Self:
        program = [chromium(), *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        theirs_in, our_out = _pipe()
        our_in, theirs_out = _pipe()
        with self._log.open("wb") as log:
            self._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", _LAUNCH, str(theirs_in), str(theirs_out), *program),
                pass_fds=(theirs_in, theirs_out),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(theirs_in)
        os.close(theirs_out)
        loop = asyncio.get_running_loop()
        self._reader = asyncio.StreamReader(_MESSAGE_BYTES_MAX)
        self._input, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._reader), os.fdopen(our_in, "rb", 0)
        )
        self._output, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(our_out, "wb", 0))
        self._reading = asyncio.create_task(self._read())
        try:
            tab = await self.send("Target.createTarget", url="about:blank")
            attached = await self.send("Target.attachToTarget", targetId=tab["targetId"], flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                await self.send(f"{domain}.enable")
        except BaseException:
            await self.end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()

    async def end(self) -> None:
        """Close the pipe, on which it leaves by itself; kill it by its own id when it does not."""
        self._output.close()
        try:
            await asyncio.wait_for(self._child.wait(), 10)
        except TimeoutError:
            self._child.kill()
            await self._child.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._input.close()

    # the page

    async def open(self, url: str) -> None:
        """Load a page, whole."""
        answer = await self.send("Page.navigate", url=url)
        if "errorText" in answer:
            raise PageError(f"{url}: {answer['errorText']}")
        await self.until(f"location.href === {orjson.dumps(url).decode()} && document.readyState === 'complete'")

    async def value(self, expression: str) -> Any:
        """What an expression comes to in the page; a promise is awaited."""
        asked = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        answer = await self.send("Runtime.evaluate", **asked)
        if "exceptionDetails" in answer:
            raise PageError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def until(self, condition: str, timeout_s: float = 60.0) -> None:
        """Await that a condition holds in the page."""
        try:
            async with asyncio.timeout(timeout_s):
                while not await self.value(condition):  # noqa: ASYNC110 - nothing but asking tells
                    await asyncio.sleep(0.02)
        except TimeoutError:
            shown = await asyncio.wait_for(self.value("document.documentElement.outerHTML"), 10)
            raise TimeoutError(f"not within {timeout_s} s: {condition}\n{self.complaints}\n{shown}") from None

    async def type(self, text: str) -> None:
        """Text into what has the focus, in place of what is selected there, and Enter."""
        await self.send("Input.insertText", text=text)
        enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        await self.send("Input.dispatchKeyEvent", type="keyDown", text="\r", **enter)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **enter)

    async def screenshot(self, path: Path) -> None:
        """What is to be seen, as PNG."""
        path.write_bytes(base64.b64decode((await self.send("Page.captureScreenshot"))["data"]))

    # the protocol

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        session = {} if self._session is None else {"sessionId": self._session}
        self._output.write(orjson.dumps({"id": number, "method": method, "params": parameters, **session}) + b"\0")
        return await asyncio.wait_for(answer, 60)

    async def _read(self) -> None:
        try:
            while True:
                self._take(orjson.loads((await self._reader.readuntil(b"\0"))[:-1]))
        except (asyncio.IncompleteReadError, OSError):
            ended = PageError(f"the browser has ended:\n{self._log.read_text('utf-8', 'replace')[-2000:]}")
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ended)

    def _take(self, message: dict[str, Any]) -> None:
        waiting = self._waiting.pop(message.get("id", 0), None)
        if waiting is not None and not waiting.done():
            if "error" in message:
                waiting.set_exception(PageError(message["error"]["message"]))
            else:
                waiting.set_result(message["result"])
        told = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")


def _pipe() -> tuple[int, int]:
    """The reading and the writing end, above the numbers that Chromium's own ends will get."""
    ends = os.pipe()
    above = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return above[0], above[1]


__all__ = ["Browser", "PageError", "chromium"]
