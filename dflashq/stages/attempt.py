"""One lease's try: when it must stop, and how it waits out an outage."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import TypeVar

from dflashq.core.backoff import delay_s
from dflashq.core.errors import (
    BlobError,
    BlobMissingError,
    DflashqError,
    LeaseLostError,
    LedgerUnreachableError,
)
from dflashq.core.json_logging import level_of
from dflashq.core.model import Generation
from dflashq.ledger import Lease
from dflashq.ledger.kept_codec import encode_generation
from dflashq.system.limits import exhausted

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
DRAIN, SICK = "drain", "sick"
RETRY_S, RETRY_CAP_S = 0.2, 15.0


class StoppedError(DflashqError):
    """The attempt was told to stop; `why` is drain, sick, paused, cancelled, fenced or unknown."""

    def __init__(self, lease: Lease, why: str) -> None:
        self.why = why
        super().__init__(f"{lease.run}/{lease.batch}: stopped ({why})")


class HandOverError(StoppedError):
    """What is left of the batch should be tried on another engine; `why` says what and why."""


class Attempt:
    """A lease at work; `stop` may come from any thread (heartbeat, drain) and is heard once.

    `entries` is all that is finished of its batch, by the field in which it is kept: should the
    ledger be wiped, it can be kept again. A generation is encoded when it is kept, not as it comes:
    many in a row take half the time of one between two answers.
    """

    def __init__(self, lease: Lease, order: float) -> None:
        self.lease, self.order = lease, order
        self.number = lease.attempts + 1
        self.begun = self.settled = False
        self.entries: dict[str, bytes | Generation] = {}
        self._why = ""
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._cancel: Callable[[], object] | None = None

    @property
    def why(self) -> str:
        """Why it was stopped; empty while it goes on."""
        return self._why

    def encoded(self, field: str) -> bytes:
        """An entry as it is kept; from now on that is how it is held. Safe from any thread."""
        found = self.entries[field]
        if isinstance(found, Generation):
            found = self.entries[field] = encode_generation(found)
        return found

    def stop(self, why: str) -> None:
        """Tell the attempt to end; what it has is kept."""
        with self._lock:
            if self._why:
                return
            self._why = why
            self._stopped.set()
            if self._cancel is not None:
                self._cancel()

    def on_stop(self, cancel: Callable[[], object]) -> None:
        """Call this once when the attempt is stopped; at once when it is already."""
        with self._lock:
            self._cancel = cancel
            if self._why:
                cancel()

    def check(self) -> None:
        """Raise StoppedError once stopped, LeaseLostError when the lease is not ours any more."""
        if self._why == "fenced":
            raise LeaseLostError(
                f"{self.lease.run}/{self.lease.batch}: another worker holds the lease now"
            )
        if self._why:
            raise StoppedError(self.lease, self._why)

    def retry_until_stopped(self, call: Callable[[], Answer], doing: str) -> Answer:
        """Repeat `call` through outages of Redis or S3 until it answers or the attempt is stopped.

        Blocks. An outage is nobody's fault: it spends no attempt. No more is a host that has run
        out of descriptors or memory.
        """
        failures = 0
        while True:
            self.check()
            try:
                return call()
            except BlobMissingError:
                raise
            except (LedgerUnreachableError, BlobError) as exc:
                log.log(
                    level_of(exc),
                    "waits for Redis or S3: run=%s batch=%s while=%s: %s",
                    *(self.lease.run, self.lease.batch, doing, exc),
                )
            except OSError as exc:
                if not exhausted(exc):
                    raise
                log.warning(
                    "waits for a host that is exhausted: run=%s batch=%s while=%s: %s",
                    *(self.lease.run, self.lease.batch, doing, exc),
                )
            failures += 1
            jitter = random.uniform(0.5, 1.0)
            self._stopped.wait(delay_s(failures, RETRY_S, RETRY_CAP_S, jitter=jitter))
