"""The garbage collector of a process that runs for days."""

from __future__ import annotations

import gc

# Answers are acyclic: what little is left to collect need not be looked for every few of them.
YOUNG, MIDDLE, OLD = 50_000, 20, 20


def settle() -> None:
    """Once everything is loaded: it lives as long as the process, so never look at it again.

    Without this a tenth of a busy worker's time goes into walking its modules. Safe to repeat;
    blocks for a full collection. https://docs.python.org/3/library/gc.html#gc.freeze
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
