"""Exact percentiles and histograms of lengths, from counts by value."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class LengthHistogram:
    """How often each length occurs. Memory grows with the number of distinct lengths alone."""

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, length: int) -> None:
        self.counts[length] += 1

    @property
    def number(self) -> int:
        return self.counts.total()

    @property
    def total(self) -> int:
        return sum(length * count for length, count in self.counts.items())

    @property
    def mean(self) -> float:
        """The mean length; 0 without lengths."""
        return self.total / self.number if self.counts else 0.0

    def percentile(self, share: float) -> int:
        """The smallest length that a `share` (0 to 1) of all do not exceed; 0 without lengths."""
        wanted, counted = share * self.number, 0
        for length in sorted(self.counts):
            counted += self.counts[length]
            if counted >= wanted:
                return length
        return 0

    def most_common(self) -> tuple[int, float]:
        """(the most frequent length, its share); (0, 0) without lengths."""
        if not self.counts:
            return 0, 0.0
        length, count = max(self.counts.items(), key=lambda pair: (pair[1], -pair[0]))
        return length, count / self.number

    def histogram(self, bins: int = 12) -> list[tuple[int, int, int]]:
        """(first, last, count) of equal bins that cover every length; [] without lengths."""
        if not self.counts:
            return []
        low, high = min(self.counts), max(self.counts)
        width = max(1, -(-(high - low + 1) // bins))
        counts = Counter((length - low) // width for length in self.counts.elements())
        return [
            (low + n * width, min(low + (n + 1) * width - 1, high), counts[n])
            for n in range((high - low) // width + 1)
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "count": self.number,
            "total": self.total,
            "mean": round(self.mean, 2),
            "median": self.percentile(0.5),
            "p90": self.percentile(0.9),
            "p99": self.percentile(0.99),
            "min": min(self.counts, default=0),
            "max": max(self.counts, default=0),
            "histogram": list(map(list, self.histogram())),
        }
