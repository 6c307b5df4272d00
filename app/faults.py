"""Named crash points: inert in production, armed by the tests.

A point is a place of the protocol at which a process may die. `hit` costs one attribute read while nothing
is armed. Arming is by the environment variable `LANEWAY_FAULTS`, read once by `laneway serve`:
`CP-2=kill` kills the process (SIGKILL) at the first hit of CP-2, `CP-2=kill@3` at the third,
`CP-24=raise` raises `FaultInjected` there. Several are joined by commas.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum


class Point(StrEnum):
    """The crash points of the durability protocol that exist in this build."""

    ACCEPT_BEFORE_COMMIT = "CP-1"
    ACCEPT_COMMITTED = "CP-2"
    ACCEPT_WOKEN = "CP-3"
    DRAIN_FETCHED = "CP-4"
    TAKEN = "CP-6"
    OPENED = "CP-8"
    DELTAS_TOLD = "CP-9"
    BLOCK_NEARLY_USED = "CP-10"
    RESPONSE_COMPLETE = "CP-11"
    CALLS_PLANNED = "CP-12"
    CALL_INTENDED = "CP-14"
    CALL_RETURNED = "CP-16"
    CALL_DONE = "CP-17"
    CALLS_DONE = "CP-18"
    ABORT_COMMITTED = "CP-21"
    ABORT_ANSWERED = "CP-22"
    SETTLE_BEFORE_COMMIT = "CP-23"
    SETTLE_COMMITTED = "CP-24"
    SETTLE_TOLD = "CP-25"
    LANE_IDLE = "CP-26"
    FOLDING = "CP-27"
    SWEEP_BETWEEN = "CP-28"
    LET_GO = "CP-29"
    CALLS_RECOVERED = "CP-33"
    SLOT_FREED = "CP-34"
    REMOVING = "CP-35"


class FaultInjected(RuntimeError):
    """Raised at a point that was armed with `raise`."""


class _Armed:
    """What is armed: point -> (action, hits still to pass)."""

    plan: dict[str, tuple[str, int]] | None = None


def arm(spec: str) -> None:
    """Arm points from the text form above; an empty text disarms. Raises ValueError on an unknown point or action."""
    plan: dict[str, tuple[str, int]] = {}
    for item in filter(None, (piece.strip() for piece in spec.split(","))):
        name, _, action = item.partition("=")
        action, _, nth = action.partition("@")
        if action not in ("kill", "raise"):
            raise ValueError(f"fault action {action!r} of {name!r}: allowed are kill, raise")
        plan[Point(name).value] = (action, int(nth or "1"))
    _Armed.plan = plan or None


def hit(point: Point) -> None:
    """Pass a point; when it is armed and its turn has come, die or raise there."""
    plan = _Armed.plan
    if plan is None or point.value not in plan:
        return
    action, left = plan[point.value]
    if left > 1:
        plan[point.value] = (action, left - 1)
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    del plan[point.value]
    raise FaultInjected(point.value)
