"""A measured figure against its goal: the verdict, the table, the JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

REACHED, MISSED, NOT_SHOWN, SKIPPED = "reached", "missed", "not shown", "skipped"


@dataclass(frozen=True, slots=True)
class Figure:
    """One ratio of this run, a value for each round; `beside` is what stands next to it."""

    name: str
    values: tuple[float, ...]
    goal: float
    at_least: bool
    beside: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """A goal between the least and the largest value is not shown, whatever the median."""
        if not self.values:
            return SKIPPED
        good = [
            value >= self.goal if self.at_least else value <= self.goal for value in self.values
        ]
        if all(good):
            return REACHED
        return NOT_SHOWN if any(good) else MISSED

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict}


def table(figures: Iterable[Figure]) -> list[str]:
    """The figures as aligned lines: median, spread, goal, verdict, and what stands beside."""
    rows = [("figure", "median", "spread", "goal", "verdict", "beside")]
    for one in figures:
        goal = f"{'>=' if one.at_least else '<='} {one.goal:g}"
        median = f"{statistics.median(one.values):.3f}" if one.values else "-"
        spread = f"{min(one.values):.3f}..{max(one.values):.3f}" if one.values else "-"
        rows.append((one.name, median, spread, goal, one.verdict, one.beside))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[5]]).rstrip()
        for row in rows
    ]


def conclusion(figures: Iterable[Figure]) -> tuple[str, bool]:
    """The last line, and whether every goal is reached (a skipped one is not)."""
    found = list(figures)
    reached = sum(one.verdict == REACHED for one in found)
    return f"{reached} of {len(found)} goals are reached", reached == len(found)
