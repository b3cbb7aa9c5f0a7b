"""Outages of Redis, each told once: when it begins, with Redis' words, and when it is over."""

from __future__ import annotations

import logging
import threading
import time

from dflashq.ledger.refusal import Need

log = logging.getLogger(__name__)

UNREACHABLE, FULL = "unreachable", "OOM"
# Longer than the pause between two tries: a password that is refused to new connections alone, or
# the last free connection, would begin and end an outage with every call.
QUIET_S = 5.0


class Outage:
    """What this process meets at one Redis. Safe from many threads; nothing here blocks.

    It is over when a call that needs as much as the refused ones was served and none was refused
    for `QUIET_S`: a replica that answers reads has not begun to take writes.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._needs: dict[str, Need] = {}
        self._began = self._failed = 0.0
        self._served: float | None = None
        self._unserved = float("-inf")

    @property
    def served_s(self) -> float:
        """Seconds since any thread was refused or got no answer; lack of room does not count."""
        return time.monotonic() - self._unserved

    @property
    def codes(self) -> tuple[str, ...]:
        """The refusals of the outage that lasts, the first one first; empty when all is well."""
        return tuple(self._needs)

    @property
    def full(self) -> bool:
        """Whether Redis has no memory left for more."""
        return FULL in self._needs

    def failed(self, code: str, words: str, need: Need) -> None:
        """A call was refused, or (`UNREACHABLE`) not answered; each code is told once."""
        with self._lock:
            now = time.monotonic()
            if not self._needs:
                self._began = now
            self._failed, self._served = now, None
            if need < Need.ROOM:
                self._unserved = now
            if code in self._needs:
                return
            self._needs[code] = need
        if code == UNREACHABLE:
            log.error(
                "Redis does not answer: address=%s error=%s. What needs it waits for it",
                *(self._address, words.rstrip(".")),
            )
            return
        log.error(
            "Redis refuses: address=%s words=%s. What it refuses waits for it",
            *(self._address, words.rstrip(".")),
        )

    def served(self, need: Need, asked: float) -> None:
        """A call that needs this was served, which was sent at `asked` (monotonic)."""
        if not self._needs:
            return
        with self._lock:
            if not self._needs or asked < self._failed or need < max(self._needs.values()):
                return
            now = time.monotonic()
            if self._served is None:
                self._served = now
            if now - self._failed < QUIET_S:
                return
            lasted, codes = self._served - self._began, ",".join(self._needs)
            self._needs.clear()
        log.info(
            "Redis serves again: address=%s after_s=%.1f codes=%s", self._address, lasted, codes
        )


_outages: dict[str, Outage] = {}


def outage_of(address: str) -> Outage:
    """The one outage that all clients of this process share for a Redis."""
    return _outages.setdefault(address, Outage(address))
