"""Figures: what a measurement found, over its repeats and targets, with ratios, goals and the table of all."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

TARGETS = ("direct", "floor", "laneway")


@dataclass(frozen=True, slots=True)
class Goal:
    """What the service should reach on a small machine with two cores."""

    bound: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g}"


@dataclass
class Figure:
    """One row. `samples` has what each repeat found; a rate is better when larger, all else when smaller."""

    name: str
    unit: str
    goal: Goal | None = None
    is_rate: bool = False
    compares: bool = True
    """Whether a ratio says anything."""
    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(self, target: str, value: float) -> None:
        self.samples.setdefault(target, []).append(value)

    def value(self, target: str) -> float | None:
        samples = self.samples.get(target)
        return median(samples) if samples else None

    def ratio(self, to: str) -> float | None:
        """How many times worse than the other the service is."""
        mine, other = self.value("laneway"), self.value(to)
        if not self.compares or mine is None or other is None or mine <= 0 or other <= 0:
            return None
        return other / mine if self.is_rate else mine / other

    @property
    def verdict(self) -> str:
        mine = self.value("laneway")
        if self.goal is None or mine is None:
            return ""
        return "ok" if self.goal.met(mine) else "missed"

    def to_json(self) -> dict[str, Any]:
        shaped: dict[str, Any] = {"name": self.name, "unit": self.unit}
        shaped |= {target: self.value(target) for target in TARGETS if target in self.samples}
        for other in ("direct", "floor"):
            ratio = self.ratio(other)
            if ratio is not None:
                shaped[f"timesWorseThan{other.capitalize()}"] = round(ratio, 3)
        if self.goal is not None:
            shaped |= {"goal": str(self.goal), "verdict": self.verdict}
        return {**shaped, "samples": self.samples}


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` percent lie, between neighbours in proportion."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def table(figures: list[Figure]) -> str:
    """All figures as Markdown."""
    lines = [
        "| figure | direct | floor | laneway | x direct | x floor | target | |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for figure in figures:
        cells = [
            f"{figure.name}, {figure.unit}",
            *(_number(figure.value(target)) for target in TARGETS),
            *(_number(figure.ratio(other)) for other in ("direct", "floor")),
            str(figure.goal or ""),
            figure.verdict,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
