"""Which alerts have been delivered: each once, whichever worker finds it first."""

from __future__ import annotations

from dflashq.config import Settings
from dflashq.core import keys
from dflashq.ledger.connection import address, connect, translated

MINE, TAKEN, TOLD = "mine", "taken", "told"
# Longer than all tries of one delivery: another worker takes over from one that died, not from
# one that still tries.
TAKEN_S = 600
# For alerts about a worker; those about a run stay as long as the ledger keeps the run.
WORKERS_S = 30 * 86400


class AlertLog:
    """The delivery of alerts, each known by its subject (a run or a worker) and a name.

    Every method blocks on Redis, is safe to repeat and safe from many threads. LedgerError.
    """

    def __init__(self, settings: Settings) -> None:
        self._redis, self._address = connect(settings), address(settings)

    def try_lock(self, ttl_s: float) -> bool:
        """True for the one process that may check for alerts now; the lock ends after `ttl_s`."""
        with translated(self._address, "taking the lock on notices"):
            return bool(self._redis.set(keys.NOTICES_LOCK, "1", nx=True, px=int(ttl_s * 1000)))

    def acquire(self, about: str, name: str) -> str:
        """MINE: deliver it now, nobody else may for `TAKEN_S`. TAKEN: another does. TOLD: done."""
        with translated(self._address, f"taking the notice {name} of {about}"):
            key = keys.notice(about, name)
            held = self._redis.set(key, TAKEN, nx=True, ex=TAKEN_S, get=True)
        return MINE if held is None else str(held.decode())

    def mark_sent(self, about: str, name: str, *, for_good: bool) -> None:
        """The alert has arrived: nobody delivers it again."""
        with translated(self._address, f"recording the notice {name} of {about}"):
            self._redis.set(keys.notice(about, name), TOLD, ex=None if for_good else WORKERS_S)

    def release(self, about: str, name: str) -> None:
        """The alert did not arrive, or its reason is over: it may be delivered (again)."""
        with translated(self._address, f"giving back the notice {name} of {about}"):
            self._redis.delete(keys.notice(about, name))
