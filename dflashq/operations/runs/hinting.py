"""As many hints as there are batches that may be claimed: what every wake-up of workers goes by."""

from __future__ import annotations

import logging

from dflashq.core.errors import LedgerError
from dflashq.core.stage_spec import GENERATE, STAGES, StageSpec
from dflashq.ledger import Hints, Ledger
from dflashq.ledger.connection import out_of_memory

log = logging.getLogger(__name__)


def hint_pending(ledger: Ledger, hints: Hints, queue: str) -> int:
    """Top the queue up to the number of batches that may be claimed now; returns how many.

    Every stage whose hints go to this queue is counted. Hints are counted, not tracked: a swallowed
    one is missing from the count and comes again, a doubled one finds nothing to claim. A full
    Redis takes no hints: workers with a free slot claim by themselves then. Blocks; safe to repeat.
    """
    pending = [
        (spec, run, ledger.claimable(run, spec.name))
        for spec in STAGES.values()
        for run, its_queue in ledger.runs(spec.name).items()
        if its_queue == queue
    ]
    missing = sum(len(batches) for _, _, batches in pending) - hints.waiting(queue)
    published = 0
    for spec, run, batches in pending:
        chosen = batches[: max(0, missing - published)]
        if chosen and publish_hints(hints, queue, run, chosen, spec=spec):
            published += len(chosen)
    return published


def publish_hints(
    hints: Hints,
    queue: str,
    run: str,
    batches: list[str],
    *,
    spec: StageSpec = GENERATE,
    urgent: bool = False,
) -> bool:
    """False when Redis is full: nobody is hinted, which nothing else may wait for."""
    try:
        hints.publish(queue, run, batches, spec=spec, urgent=urgent)
    except LedgerError as exc:
        if not out_of_memory(exc):
            raise
        log.debug("no hints: run=%s batches=%d: %s", run, len(batches), exc)
        return False
    return True
