"""Finished work of batches whose ledger was wiped: held in memory until it can be kept again."""

from __future__ import annotations

import threading
from itertools import islice

from dflashq.ledger import Lease, Ledger
from dflashq.stages.attempt import Attempt

PER_CALL = 64


class RecoveryBuffer:
    """Entries by (run, batch). Safe from many threads; memory is bounded by the batches at work."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], dict[str, bytes]] = {}
        self._lock = threading.Lock()

    def hold(self, attempt: Attempt) -> int:
        """Save what an attempt has finished; returns how many entries are held for its batch."""
        key = (attempt.lease.run, attempt.lease.batch)
        with self._lock:
            held = self._held.setdefault(key, {})
            held.update({field: attempt.encoded(field) for field in list(attempt.entries)})
            return len(held)

    def batches(self) -> list[tuple[str, str]]:
        """(run, batch) of everything held."""
        with self._lock:
            return list(self._held)

    def drop(self, run: str, batch: str) -> None:
        """Forget a batch that was committed elsewhere."""
        with self._lock:
            self._held.pop((run, batch), None)

    def keep_again(self, ledger: Ledger, lease: Lease) -> int:
        """Keep what is held for this lease's batch; returns how many entries. Safe to repeat."""
        with self._lock:
            held = dict(self._held.get((lease.run, lease.batch), {}))
        entries = iter(held.items())
        while some := list(islice(entries, PER_CALL)):
            if not ledger.keep(lease, some):
                return 0
        self.drop(lease.run, lease.batch)
        return len(held)
