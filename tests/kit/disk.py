"""A small disk of its own: a tmpfs that a test can fill and free again. Skips where it may not be mounted."""

from __future__ import annotations

import contextlib
import errno
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """Mounted at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all space but so much."""
        with self._filler.open("ab", buffering=0) as file:
            left = max(0, self.free - leave_bytes)
            while left > 0:
                try:
                    left -= file.write(b"\0" * min(left, 65536))
                except OSError as problem:
                    if problem.errno != errno.ENOSPC:
                        raise
                    return

    def clear(self) -> None:
        """Give the space back."""
        self._filler.unlink()

    @property
    def free(self) -> int:
        return shutil.disk_usage(self.path).free


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[SmallDisk]:
    """A new, empty disk of this size. It goes with what is on it."""
    path.mkdir()
    options = f"size={megabytes}m,mode=700"
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "laneway-test", str(path)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a tmpfs (root, or CAP_SYS_ADMIN)")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)
