"""Admission: whether an input may enter its session's queue. A pure decision on what was read under the lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

QueueMode = Literal["followup", "reject"]

LATER_MODES = ("steer", "collect", "interrupt")
"""Modes of the contract that this build does not have yet."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """The session's queue at the instant of the decision. `waiting` excludes the one that executes."""

    executing: bool
    waiting: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """Goes to the end of the queue, with `ahead` runs before it."""

    ahead: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing is stored."""

    reason: Literal["session-busy", "queue-full"]


def decide(mode: QueueMode, cap: int, queue: QueueState) -> Admitted | Refused:
    """`reject` refuses a busy session; a full queue refuses everybody. `cap` bounds the waiting ones."""
    busy = queue.executing or queue.waiting > 0
    if mode == "reject" and busy:
        return Refused("session-busy")
    if busy and queue.waiting >= cap:
        return Refused("queue-full")
    return Admitted(queue.waiting + int(queue.executing))
