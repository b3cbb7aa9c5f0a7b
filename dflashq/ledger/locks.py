"""Locks of the housekeeping: one worker at a time does what any of them could."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from dflashq.core import keys
from dflashq.core.errors import LedgerError
from dflashq.ledger.connection import out_of_memory
from dflashq.ledger.refusal import Need


class HousekeepingLocks(ABC):
    """The ledger's locks; each falls by itself. Every method blocks on Redis."""

    _redis: Any

    def sweep_lock(self, ttl_s: float) -> bool:
        """True for the one worker that may sweep now; the lock falls by itself after `ttl_s`.

        A full Redis takes no lock: then everybody may, since sweeping is safe to repeat and a
        full Redis must still get the leases of the dead back.
        """
        try:
            with self._translated("taking the sweep lock", Need.ROOM):
                return bool(self._redis.set(keys.SWEEP_LOCK, "1", nx=True, px=int(ttl_s * 1000)))
        except LedgerError as exc:
            if out_of_memory(exc):
                return True
            raise

    def progress_lock(self, ttl_s: float) -> bool:
        """True for the one worker that writes `progress.json` now; falls after `ttl_s`."""
        with self._translated("taking the progress lock"):
            return bool(self._redis.set(keys.PROGRESS_LOCK, "1", nx=True, px=int(ttl_s * 1000)))

    def finalize_lock(self, run: str) -> bool:
        """True for the one worker that closes a finished run; falls by itself after an hour."""
        with self._translated(f"closing run {run}"):
            return bool(self._redis.set(keys.finalize_lock(run), "1", nx=True, ex=3600))

    def release_finalize_lock(self, run: str) -> None:
        """Give the lock of `finalize_lock` back."""
        with self._translated(f"closing run {run}"):
            self._redis.delete(keys.finalize_lock(run))

    @abstractmethod
    def _translated(self, doing: str, need: Need = Need.ANSWER) -> Any: ...
