"""A wall clock of a service under test that the test can set."""

from __future__ import annotations

from pathlib import Path

PATCH = '''
"""Loaded by the service under test when it starts: its wall clock is off by the milliseconds in a file."""
import os, time
_real, _path = time.time_ns, os.environ["STEPPED_CLOCK"]
def _stepped():
    with open(_path) as file:
        return _real() + int(file.read() or 0) * 1_000_000
time.time_ns = _stepped
'''


class SteppedClock:
    """A wall clock that the test can set, for services started with `environ`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._offset = folder / "offset"
        self._offset_ms = 0
        (folder / "sitecustomize.py").write_text(PATCH)
        self.step_back(0)
        paths = f"{folder}:{Path(__file__).resolve().parents[2]}"
        self.environ = {"PYTHONPATH": paths, "STEPPED_CLOCK": str(self._offset)}

    def step_on(self, days: float) -> None:
        """From now on it is so much later than it was."""
        self.step_back(-days * 86_400)

    def step_back(self, seconds: float) -> None:
        """From now on it is so much earlier than it was; never seen half done."""
        self._offset_ms -= int(seconds * 1000)
        fresh = self._offset.with_suffix(".new")
        fresh.write_text(str(self._offset_ms))
        fresh.rename(self._offset)
