"""The garbage collector of a process that runs for days."""

from __future__ import annotations

import gc

# Answers are acyclic: what little is left to collect need not be looked for every few of them.
YOUNG, MIDDLE, OLD = 50_000, 20, 20


def freeze_heap() -> None:
    """Call it once everything is loaded: what is loaded lives as long as the process.

    Without this a tenth of a busy worker's time goes into walking its modules, and each round
    stops a monitor's views for up to 300 ms. Safe to repeat; blocks for a full collection. https://docs.python.org/3/library/gc.html#gc.freeze
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
