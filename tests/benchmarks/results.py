"""A measured figure against its goal: the verdict, the table, the JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

REACHED, MISSED, NOT_SHOWN, SKIPPED = "reached", "missed", "not shown", "skipped"


@dataclass(frozen=True, slots=True)
class Figure:
    """One ratio of this run, with a value for each round.

    `at_least`: the goal is a lower bound, else an upper one. `beside` is printed in the last
    column; `more` goes into the JSON alone.
    """

    name: str
    values: tuple[float, ...]
    goal: float
    at_least: bool
    beside: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """ "not shown" when some rounds reach the goal and others do not, whatever the median."""
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
    """The figures as aligned lines, a heading first: median, spread, goal, verdict, `beside`."""
    rows = [("figure", "median", "spread", "goal", "verdict", "beside")]
    for figure in figures:
        values = figure.values
        goal = f"{'>=' if figure.at_least else '<='} {figure.goal:g}"
        median = f"{statistics.median(values):.3f}" if values else "-"
        spread = f"{min(values):.3f}..{max(values):.3f}" if values else "-"
        rows.append((figure.name, median, spread, goal, figure.verdict, figure.beside))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[5]]).rstrip()
        for row in rows
    ]


def conclusion(figures: Iterable[Figure]) -> tuple[str, bool]:
    """The last line, and whether every goal is reached (a skipped one is not)."""
    verdicts = [figure.verdict for figure in figures]
    reached = verdicts.count(REACHED)
    return f"{reached} of {len(verdicts)} goals are reached", reached == len(verdicts)
