"""The seam to the live part of the event log. The durable part is in the store; the tail is a hint, never the truth.

One engine here, `memory`; the contract is what readers and the writer rely on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from app.domain.event import Event


class Watch(Protocol):
    """One reader's view of one run's tail. Holds no events of its own, so a slow reader costs nothing."""

    def after(self, cursor: int) -> list[Event] | None:
        """What was told after `cursor`, in order, empty when nothing was; None: the tail cannot tell, read the log."""
        ...

    def version(self) -> int:
        """Rises with everything that happens to the run. Read it before the log, then wait for more than it."""
        ...

    async def wait(self, version: int, timeout_s: float) -> bool:
        """Until the version is above `version` or streams are closing (True), or the time is over (False)."""
        ...

    def turn(self) -> int:
        """Rises when the run ended, or when the log should be asked. Read it before the record, then wait for more."""
        ...

    async def wait_turn(self, turn: int, timeout_s: float) -> bool:
        """As `wait`, for those who want the end and no deltas."""
        ...

    def close(self) -> None:
        """The reader leaves."""
        ...


class Tail(Protocol):
    """Where events are told. All calls come from the event loop; none of them blocks or raises."""

    def tell(self, events: Iterable[Event], *, expected: bool = False) -> None:
        """Events of one run, in order of their numbers. `expected`: a reader is about to come, keep them for it."""
        ...

    def kept(self, run_id: str, seq: int) -> None:
        """All up to `seq` is in the log: the tail may drop it."""
        ...

    def watch(self, run_id: str) -> Watch: ...

    def watched(self) -> dict[str, int]:
        """Runs with readers, and the last number told of each (0: none)."""
        ...

    def nudge(self, run_id: str, seq_last: int) -> None:
        """The run stands at `seq_last`, which was not told here: its readers should read the log."""
        ...

    def close_streams(self) -> None:
        """The process is about to go: wake every reader, for good."""
        ...

    @property
    def closing(self) -> bool: ...
