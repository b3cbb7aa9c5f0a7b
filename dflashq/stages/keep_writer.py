"""Keeping finished work in the ledger: one thread a worker, many generations a round trip."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from dflashq.core import metrics
from dflashq.core.errors import LeaseLostError, LedgerError
from dflashq.core.json_logging import level_of
from dflashq.core.model import Generation
from dflashq.ledger import Ledger
from dflashq.stages.attempt import Attempt
from dflashq.stages.keep_blockage import KeepBlockage
from dflashq.system.threads import SupervisedThread, report

log = logging.getLogger(__name__)

PER_CALL = 64
RETRY_S = 1.0
# Answers come one by one, and a round trip with its fsync costs as much for sixty. What a kill in
# between loses is half a second of the minutes that every answer under way loses with it.
GATHER_S = 0.5


class KeepWriter:
    """Writes entries behind the generations: `add` never blocks, `flush` waits for the disk.

    What comes within half a second goes in one round trip.

    While the budget is full, entries stay in memory in their order and are tried again, and
    `full` says so: the worker then admits only its oldest batch, whose completion makes room.
    While Redis takes nothing at all, they wait too, and soon `blockage` closes the gate.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: dict[Attempt, deque[str]] = {}
        self._beginning: set[Attempt] = set()
        self._change = threading.Condition()
        self._hurry = threading.Event()
        self._running = True
        self.full = False
        self.blockage = KeepBlockage(lambda reason: None, lambda reason: None)
        self._failure: LedgerError | None = None
        self._thread = SupervisedThread("keeping", self._write, wake=self._end)
        self._thread.start()

    def add(self, attempt: Attempt, field: str, payload: bytes | Generation) -> None:
        """Queue one finished generation, or what else is to be kept. Does not block."""
        with self._change:
            attempt.entries[field] = payload
            if not self._waiting:
                self._change.notify_all()
            queue = self._waiting.setdefault(attempt, deque())
            queue.append(field)
            if len(queue) >= PER_CALL:
                self._hurry.set()

    def begin(self, attempt: Attempt) -> None:
        """Count this attempt: its first generation is admitted. Does not block; safe to repeat.

        One that only waited behind older batches has cost nothing and spends nothing.
        """
        if not attempt.begun:
            attempt.begun = True
            with self._change:
                self._beginning.add(attempt)
                # At once: a batch that kills its worker must not do so uncounted.
                self._hurry.set()
                self._change.notify_all()

    def flush(self, attempt: Attempt, timeout_s: float) -> bool:
        """Block until all entries of this attempt are on disk; False when time ran out first."""
        with self._change:
            self._hurry.set()
            return self._change.wait_for(lambda: attempt not in self._waiting, timeout_s)

    def forget(self, attempt: Attempt) -> None:
        """Drop what is not written yet: the batch is done, or its lease is lost."""
        with self._change:
            self._waiting.pop(attempt, None)
            self._beginning.discard(attempt)
            self._settle()

    def close(self) -> None:
        """End the thread; entries not flushed are dropped."""
        self._thread.stop()

    def _end(self) -> None:
        with self._change:
            self._running = False
            self._hurry.set()
            self._change.notify_all()

    def _settle(self) -> None:
        if not self._waiting:
            self.full = False
            if not self._beginning:
                self.blockage.end()
        self._change.notify_all()

    def _write(self) -> bool:
        """One round of all attempts; False when each of them met something unexpected."""
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._beginning or not self._running)
        self._hurry.wait(GATHER_S)
        with self._change:
            if not self._running:
                return True
            self._hurry.clear()
            rounds = [(a, list(q)) for a, q in self._waiting.items()]
            beginning = list(self._beginning)
        # Every attempt gets its turn; only when none could write is there reason to wait.
        self._failure = None
        written = [self._guarded(attempt, self._begin, attempt) for attempt in beginning]
        written += [self._guarded(a, self._keep, a, fields) for a, fields in rounds]
        if self._failure is None or any(written):
            self.blockage.end()
        else:
            self.blockage.failed(self._failure)
        if written and all(one is None for one in written):
            return False
        if written and not any(written):
            with self._change:
                self._change.wait_for(lambda: not self._running, RETRY_S)
        return True

    def _guarded(
        self, attempt: Attempt, write: Callable[..., bool], *arguments: object
    ) -> bool | None:
        """What `write` says; None when it met something unexpected, which costs this round only.

        What it was to write stays in its place, and the attempts after it get their turn.
        """
        try:
            return write(*arguments)
        except Exception as exc:  # noqa: BLE001 - told, counted, and tried again
            report(self._thread.name, exc, f"writing {attempt.lease.run}/{attempt.lease.batch}")
            return None

    def _begin(self, attempt: Attempt) -> bool:
        """One round trip; True when it got somewhere."""
        try:
            self._ledger.begin(attempt.lease)
        except LeaseLostError:
            self.forget(attempt)
            attempt.stop("fenced")
            return True
        except LedgerError as exc:
            self._failure = exc
            log.log(level_of(exc), "beginning waits: batch=%s: %s", attempt.lease.batch, exc)
            return False
        with self._change:
            self._beginning.discard(attempt)
        return True

    def _keep(self, attempt: Attempt, fields: list[str]) -> bool:
        """One round trip; True when it got somewhere."""
        # All of them: those that a full Redis keeps waiting take less memory so.
        entries = [(field, attempt.encoded(field)) for field in fields][:PER_CALL]
        try:
            kept = self._ledger.keep(attempt.lease, entries)
        except LeaseLostError:
            self.forget(attempt)
            attempt.stop("fenced")
            return True
        except LedgerError as exc:
            self._failure = exc
            log.log(
                level_of(exc),
                "keeping waits: run=%s batch=%s: %s",
                *(attempt.lease.run, attempt.lease.batch, exc),
            )
            return False
        with self._change:
            if kept:
                metrics.KEPT.add(len(entries), run=attempt.lease.run)
                self._drop_written(attempt, len(entries))
            elif not self.full:
                log.warning(
                    "kept work has used its budget in Redis: only the oldest batch goes on until "
                    "one is committed (DFLASHQ_KEEP_BUDGET_MB)"
                )
            self.full = not kept
            self._change.notify_all()
        return kept

    def _drop_written(self, attempt: Attempt, count: int) -> None:
        queue = self._waiting.get(attempt)
        if queue is None:
            return
        for _ in range(min(count, len(queue))):
            queue.popleft()
        if not queue:
            del self._waiting[attempt]
        elif count == PER_CALL:
            self._hurry.set()  # there was more than a call holds: the rest need not gather
