"""What a tool shows while it works: whole lines, joined, at most four times a second, and no more than a bound."""

from __future__ import annotations

import asyncio

import structlog

from app.domain.masking import Masker
from app.domain.message import ToolCallPart
from app.domain.step import CallShown, Report
from app.tools.contract import Text, ToolOutput
from app.tools.sanitize import clean

PACE_S = 0.25
"""Between two updates of one call; `spec` of the reference gives the figure."""

LINE_CHARS = 2_000
"""A line without an end is shown in pieces of this size; shorter ones wait for their end, so that no secret is cut."""

HELD_CHARS = 65_536
"""Output that waits to be shown; what is older is passed over."""

UTF8_BYTES_MAX = 4

log = structlog.get_logger("laneway.tools")


class Updates:
    """The updates of one call. `add` never waits; one task at a time tells what has come."""

    def __init__(self, message_id: str, call: ToolCallPart, report: Report, masker: Masker, chars_max: int) -> None:
        self._message_id = message_id
        self._call = call
        self._report = report
        self._masker = masker
        self._left = chars_max
        self._held = ""
        self._pump: asyncio.Task[None] | None = None
        self._stopped = False

    def add(self, text: str) -> None:
        """More output. Without effect once the call has ended or the bound of what is shown is reached."""
        if self._stopped or not self._left:
            return
        self._held = (self._held + text)[-HELD_CHARS:]
        if self._pump is None and self._whole() > 0:
            self._pump = asyncio.get_running_loop().create_task(self._tell(), name="tool updates")

    async def stop(self) -> None:
        """Nothing is told any more when this returns. What was not shown yet stands in the result."""
        self._stopped = True
        while self._pump is not None and not self._pump.done():
            self._pump.cancel()
            try:
                await asyncio.wait({self._pump})
            except asyncio.CancelledError:
                continue  # the caller is on its way out, and this is the last thing it does

    async def _tell(self) -> None:
        try:
            while (size := self._whole()) > 0 and self._left:
                text, self._held = self._held[:size], self._held[size:]
                shown = clean(ToolOutput((Text(text),)), self._masker, size * UTF8_BYTES_MAX).text[: self._left]
                self._left -= len(shown)
                if shown:
                    await self._report(CallShown(self._message_id, self._call, shown))
                await asyncio.sleep(PACE_S)
        except asyncio.CancelledError:
            raise
        except Exception as problem:
            # The call itself meets the same problem at its next step, and ends by it.
            log.debug("tool.update-not-told", problem=type(problem).__name__)
            self._stopped = True
        finally:
            self._pump = None

    def _whole(self) -> int:
        """How much of what is held can be shown now."""
        end = self._held.rfind("\n") + 1
        return end or (len(self._held) if len(self._held) >= LINE_CHARS else 0)
