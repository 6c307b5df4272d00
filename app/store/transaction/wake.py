"""A lane to be drained: the session and the generation that a drain must name to adopt it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wake:
    """Waking again with the same generation is harmless: only one drain can adopt it."""

    session_id: str
    generation: int
