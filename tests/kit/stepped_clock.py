"""A wall clock of a service under test that the test can set."""

from __future__ import annotations

import time
from pathlib import Path

VARIABLE = "STEPPED_CLOCK"


def install(path: str) -> None:
    """In the service under test, before it begins: its wall clock is off by the milliseconds in a file."""
    real = time.time_ns

    def stepped() -> int:
        with Path(path).open() as file:
            return real() + int(file.read() or 0) * 1_000_000

    time.time_ns = stepped


class SteppedClock:
    """A wall clock that the test can set, for services started with `environ`; only those that are forked have it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._offset = folder / "offset"
        self._offset_ms = 0
        self.step_back(0)
        self.environ = {VARIABLE: str(self._offset)}

    def step_on(self, days: float) -> None:
        """From now on it is so much later than it was."""
        self.step_back(-days * 86_400)

    def step_back(self, seconds: float) -> None:
        """From now on it is so much earlier than it was; never seen half done."""
        self._offset_ms -= int(seconds * 1000)
        fresh = self._offset.with_suffix(".new")
        fresh.write_text(str(self._offset_ms))
        fresh.rename(self._offset)
