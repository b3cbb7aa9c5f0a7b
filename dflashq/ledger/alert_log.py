"""Which notices people have got: each is told once, whichever worker sees its reason first."""

from __future__ import annotations

from dflashq.config import Settings
from dflashq.core import keys
from dflashq.ledger.connection import address, connect, translated

MINE, TAKEN, TOLD = "mine", "taken", "told"
# Longer than all tries of one delivery: a teller that died is succeeded, one that lives is not.
TAKEN_S = 600
# Notices about a worker; those about a run stay as long as the ledger keeps the run.
WORKERS_S = 30 * 86400


class AlertLog:
    """Notices by what they are about (a run or a worker) and a name. Safe from many threads.

    Every method blocks on Redis and raises LedgerError; all are safe to repeat.
    """

    def __init__(self, settings: Settings) -> None:
        self._redis, self._address = connect(settings), address(settings)

    def looking(self, ttl_s: float) -> bool:
        """True for the one process that looks for notices now; falls by itself after `ttl_s`."""
        with translated(self._address, "taking the lock on notices"):
            return bool(self._redis.set(keys.NOTICES_LOCK, "1", nx=True, px=int(ttl_s * 1000)))

    def take(self, about: str, name: str) -> str:
        """`mine`: tell it now, nobody else does for `TAKEN_S`; else `taken` or `told`."""
        with translated(self._address, f"taking the notice {name} of {about}"):
            key = keys.notice(about, name)
            held = self._redis.set(key, TAKEN, nx=True, ex=TAKEN_S, get=True)
        return MINE if held is None else str(held.decode())

    def told(self, about: str, name: str, *, for_good: bool) -> None:
        """It has arrived: nobody tells it again."""
        with translated(self._address, f"recording the notice {name} of {about}"):
            self._redis.set(keys.notice(about, name), TOLD, ex=None if for_good else WORKERS_S)

    def give_back(self, about: str, name: str) -> None:
        """It did not arrive, or its reason is over: it may be told (again)."""
        with translated(self._address, f"giving back the notice {name} of {about}"):
            self._redis.delete(keys.notice(about, name))
