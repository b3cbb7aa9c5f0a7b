"""Housekeeping: expired leases go back, and there are as many hints as pending batches."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from dflashq.core.errors import LedgerError
from dflashq.core.journal import level_of
from dflashq.ledger import Hints, Ledger
from dflashq.ledger.connection import out_of_memory

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep did: batches taken back, batches that died, hints published."""

    expired: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    hinted: int = 0


def hint_pending(ledger: Ledger, hints: Hints, queue: str) -> int:
    """Top the queue up to the number of batches that may be claimed now; returns how many.

    Hints are counted, not tracked: a swallowed one is missing from the count and comes again, a
    doubled one finds nothing to claim. A full Redis takes no hints: workers with a free slot claim
    by themselves then. Blocks; safe to repeat.
    """
    pending = {
        run: ledger.claimable(run) for run, its_queue in ledger.runs().items() if its_queue == queue
    }
    missing = sum(map(len, pending.values())) - hints.waiting(queue)
    published = 0
    for run, batches in pending.items():
        chosen = batches[: max(0, missing - published)]
        if chosen and _publish(hints, queue, run, chosen):
            published += len(chosen)
    return published


def _publish(
    hints: Hints, queue: str, run: str, batches: list[str], *, urgent: bool = False
) -> bool:
    """False when Redis is full: nobody is hinted, which nothing else may wait for."""
    try:
        hints.publish(queue, run, batches, urgent=urgent)
    except LedgerError as exc:
        if not out_of_memory(exc):
            raise
        log.debug("no hints: run=%s batches=%d: %s", run, len(batches), exc)
        return False
    return True


class Sweeper:
    """The sweep of one process, which any number of processes may run side by side.

    Nobody is expired before this process has seen a full lease time of a working ledger: after an
    outage every holder first gets its chance to renew.
    """

    def __init__(self, ledger: Ledger, hints: Hints, ttl_s: float) -> None:
        self._ledger, self._hints, self._ttl_s = ledger, hints, ttl_s
        self._connected_since: float | None = None

    def sweep(self, lock_s: float) -> Swept | None:
        """One sweep of all runs, or None when another process does it or the ledger is away."""
        try:
            if not self._ledger.sweep_lock(lock_s):
                self._seen()
                return None
            swept = self._sweep()
        except LedgerError as exc:
            self._connected_since = None
            log.log(level_of(exc), "sweep put off: %s", exc)
            return None
        self._seen()
        if swept.expired or swept.hinted:
            log.info(
                "swept: taken back=%s dead=%s hints=%d", swept.expired, swept.dead, swept.hinted
            )
        return swept

    def _seen(self) -> None:
        if self._connected_since is None:
            self._connected_since = time.monotonic()

    def _may_expire(self) -> bool:
        since = self._connected_since
        if since is None or time.monotonic() - since < self._ttl_s:
            return False
        # Another thread may have met an outage that came and went between two sweeps.
        return self._ledger.outage.served_s >= self._ttl_s

    def _sweep(self) -> Swept:
        runs = self._ledger.runs()
        swept = Swept(hinted=0)
        if self._may_expire():
            for run, queue in sorted(runs.items()):
                self._expire(run, queue, swept)
        hinted = sum(
            hint_pending(self._ledger, self._hints, queue) for queue in sorted(set(runs.values()))
        )
        return Swept(swept.expired, swept.dead, hinted)

    def _expire(self, run: str, queue: str, swept: Swept) -> None:
        outcomes = self._ledger.expire(run)
        back = [batch for batch, outcome in outcomes if outcome == "pending"]
        swept.expired.extend(f"{run}/{batch}" for batch in back)
        swept.dead.extend(f"{run}/{b}" for b, outcome in outcomes if outcome == "dead")
        if back and self._ledger.state(run) == "active":
            # Recovered work overtakes what nobody has begun.
            _publish(self._hints, queue, run, back, urgent=True)
