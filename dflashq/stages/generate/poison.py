"""Poison: which prompts were in flight when the engine died, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable

from dflashq.ledger.kept_codec import strike_entry

# After so many deaths a prompt runs with nothing else in flight: the next one is its own doing.
ALONE = 2


class PoisonTracker:
    """The strikes of one batch's prompts; they are kept, so that no other worker begins anew."""

    def __init__(self, known: dict[int, int], keep: Callable[[str, bytes], None]) -> None:
        self._counts, self._keep = dict(known), keep

    def alone(self, index: int) -> bool:
        """Whether this prompt must run with nothing else in flight."""
        return self._counts.get(index, 0) >= ALONE

    def add(self, index: int) -> int:
        """The engine died while this prompt was in flight; returns how often it has."""
        number = self._counts.get(index, 0) + 1
        self._counts[index] = number
        self._keep(*strike_entry(index, number))
        return number
