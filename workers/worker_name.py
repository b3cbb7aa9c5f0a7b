"""The name of a worker, which one boot has at a time: taken before anything else is touched."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from typing import Any

from dflashq.core.errors import UsageError
from dflashq.core.worker_identity import WorkerBoot
from dflashq.ledger import Ledger
from dflashq.system.process_identity import own_process, proved_gone

log = logging.getLogger(__name__)

Row = dict[str, Any]
POLL_S = 0.5


class WorkerName:
    """The name of one worker process, in the ledger.

    `on_replaced` is called when another boot has the name, from whichever thread finds out.
    `pause` is called between two looks while the name is waited for, and may raise to end the wait.
    """

    def __init__(
        self,
        ledger: Ledger,
        boot: WorkerBoot,
        lease_s: float,
        *,
        on_replaced: Callable[[], None],
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self.boot = boot
        self.taken = False
        self._on_replaced, self._pause = on_replaced, pause
        self._ledger, self._lease_s = ledger, lease_s
        self._identity = {"boot": boot.text, "host": socket.gethostname(), **own_process().row()}
        self._replaced = False

    def take(self, row: Row) -> None:
        """Take the name and announce `row` under it. Safe to repeat.

        UsageError when another worker of this name lives; its row is left alone. Blocks up to a
        lease time when the last one may live: it renews its name more often than that. How old its
        row is proves nothing, since Redis may have been away.
        """
        last = self._of_another()
        gone = last is not None and proved_gone(last, self.boot)
        until = time.monotonic()
        if last is not None and not gone:
            until += self._lease_s
            log.info(
                "the name may be in use: worker=%s host=%s: this boot listens for %.0f s",
                self.boot.name,
                last.get("host", "?"),
                self._lease_s,
            )
        while time.monotonic() < until or not self._announced(row, last if gone else None):
            now = self._of_another()
            if now is None:
                until = time.monotonic()  # it ended in order meanwhile
            elif _last_heard(now) != _last_heard(last):
                raise self._twin(now)
            self._pause(min(POLL_S, self._lease_s / 4))
        self.taken = True

    def announce(self, row: Row) -> None:
        """Say how this worker fares."""
        self._check(self._ledger.announce(self.boot.name, row | self._identity))

    def renew(self) -> None:
        """Say that this worker lives, whatever else it is busy with."""
        self._check(self._ledger.renew_name(self.boot.name, self.boot.text))

    def retire(self) -> None:
        """Give the name back; another boot's row is left alone. Safe to repeat."""
        self._ledger.retire(self.boot.name, self.boot.text)

    # --- inside

    def _of_another(self) -> Row | None:
        row = self._ledger.worker(self.boot.name)
        return None if row is None or row.get("boot") == self.boot.text else row

    def _announced(self, row: Row, gone: Row | None) -> bool:
        known = "" if gone is None else str(gone["boot"])
        return self._ledger.announce(self.boot.name, row | self._identity, gone=known)

    def _twin(self, row: Row) -> UsageError:
        return UsageError(
            f"a worker named {self.boot.name} is alive on host {row.get('host', '?')} (process "
            f"{row.get('pid', '?')}, boot {row.get('boot', '?')}), and two of one name would take "
            "each other for dead. It was left alone, with all that it holds. Give this worker "
            "another name with -n, or its host another host name."
        )

    def _check(self, ours: bool) -> None:
        if ours or self._replaced:
            return
        self._replaced = True
        log.critical(
            "this worker was silent past its lease and another one has its name now: worker=%s "
            "boot=%s: it hands its batches back and ends. If both shall run, give one of them "
            "another name with -n",
            self.boot.name,
            self.boot.text,
        )
        self._on_replaced()


def _last_heard(row: Row | None) -> tuple[object, object] | None:
    """Changes whenever a worker is heard of."""
    return None if row is None else (row.get("boot"), row.get("seen_ms"))
