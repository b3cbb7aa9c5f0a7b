"""What a worker does by the clock: sweep, reclaim, announce, watch its consumer, close runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from dflashq.core.errors import (
    DflashqError,
    LedgerError,
    LedgerRefusedError,
    LedgerUnreachableError,
)
from dflashq.core.json_logging import level_of
from dflashq.ledger import Hints, Ledger
from dflashq.operations.housekeeping.sweep import Sweeper
from dflashq.stages.runner import StageRunner
from dflashq.system.disk import full_places
from dflashq.system.limits import exhausted
from dflashq.system.threads import SupervisedThread, report

log = logging.getLogger(__name__)


class ConsumerHangDetector:
    """Notices a consumer that takes no hints though some wait and a slot is free.

    Celery's consumer has hung after broker reconnects; such a worker looks alive and does nothing.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._taken, self._since = -1, 0.0

    def hung(self, now_s: float, *, taken: int, free: bool, waiting: int) -> bool:
        """True once hints have waited for a free slot, none taken, for the whole patience."""
        if taken != self._taken or not free or not waiting:
            self._taken, self._since = taken, now_s
            return False
        return now_s - self._since >= self._patience_s


class DiskSpaceGate:
    """Closes the gate while a disk or /dev/shm is too full, with a sentence as the reason."""

    def __init__(self, close: Callable[[str], None], open_: Callable[[str], None]) -> None:
        self._close, self._open = close, open_
        self._told: dict[str, str] = {}

    def look(self, sentences: list[str]) -> None:
        """Take in what is full now, one sentence a place (its first word); none is well."""
        now = {sentence.split(" ", 1)[0]: sentence for sentence in sentences}
        for place, sentence in now.items():
            if place not in self._told:
                log.error("the gate closes: %s", sentence)
                self._close(sentence)
                self._told[place] = sentence
        for place in [place for place in self._told if place not in now]:
            log.info("the gate opens: %s has room again", place)
            self._open(self._told.pop(place))


class Job(NamedTuple):
    """One thing to do every tick. A worker without a `vital` one is of no use to its fleet."""

    name: str
    run: Callable[[], object]
    vital: bool = False


class PeriodicThread:
    """A thread that ticks every `sweep_s`; an outage of the ledger is waited out.

    A job that fails costs itself alone. When a vital one fails on end, the thread gives up.
    """

    def __init__(
        self,
        ledger: Ledger,
        hints: Hints,
        generator: StageRunner,
        announce: Callable[[], None],
        judge_canaries: Callable[[], None],
        close_runs: Callable[[], None],
        notify: Callable[[], None],
        on_hung: Callable[[], None],
    ) -> None:
        self._settings = generator.settings
        self._ledger, self._hints, self._generator = ledger, hints, generator
        self._on_hung = on_hung
        self._sweeper = Sweeper(ledger, hints, self._settings.lease_ttl_s)
        self._watch = ConsumerHangDetector(self._settings.consumer_patience_s)
        self._room = DiskSpaceGate(generator.close_gate, generator.open_gate)
        self._consuming = threading.Event()
        self._connected = threading.Event()
        self._connected.set()
        self._thread = SupervisedThread("clock", self._tick, pause_s=self._settings.sweep_s)
        self._jobs = (
            Job("watching the room", lambda: self._room.look(full_places(self._settings))),
            # First what this worker can go on with, or the sweep's hints lead others to it.
            Job("reclaiming", self._generator.resume_recovered, vital=True),
            Job("looking at its peers", self._generator.look_at_peers),
            Job("sweeping", lambda: self._sweeper.sweep(self._settings.sweep_s * 0.8), vital=True),
            Job("claiming without hints", self._claim_unhinted),
            Job("announcing", announce, vital=True),
            Job("judging canaries", judge_canaries),
            Job("closing runs", close_runs),
            Job("notifying", notify),
            Job("watching the consumer", self._watch_consumer),
        )

    def start(self) -> None:
        self._thread.start()

    def consumer_starts(self) -> None:
        """The engine is ready, so hints are taken from now on. Safe to repeat."""
        self._consuming.set()

    def consumer_connected(self, connected: bool) -> None:
        """Whether hints reach the consumer: while they do not, batches are claimed without."""
        (self._connected.set if connected else self._connected.clear)()

    def stop(self) -> None:
        """End the thread; blocks until its tick is over. Safe to repeat."""
        self._thread.stop()

    def _tick(self) -> bool:
        """False when a vital job met something unexpected, or the host has nothing left."""
        well = True
        for job in self._jobs:
            if self._thread.stopping:
                break
            try:
                job.run()
            except LedgerError as exc:
                log.log(level_of(exc), "the clock waits for the ledger: job=%s: %s", job.name, exc)
                # An outage of Redis is waited out. A host that has no descriptors left is not:
                # such a worker goes on taking hints from others who could follow them.
                well = well and not exhausted(exc)
                gone = isinstance(exc, LedgerUnreachableError)
                if gone and not isinstance(exc, LedgerRefusedError):
                    break  # it did not answer: each job after this one would wait for the same
            except DflashqError as exc:
                log.warning("the clock puts a job off: job=%s: %s", job.name, exc)
            except Exception as exc:  # noqa: BLE001 - told, counted, and the other jobs go on
                report(self._thread.name, exc, job.name)
                well = well and not job.vital
        return well

    def _watch_consumer(self) -> None:
        if self._consumer_hung():
            log.critical(
                "the consumer has taken no hint for %.0f s though some wait: this worker hands its "
                "batches back and exits, so that it is started anew",
                self._settings.consumer_patience_s,
            )
            self._on_hung()

    def _claim_unhinted(self) -> None:
        if self._hints_fail():
            self._generator.claim_unhinted()

    def _hints_fail(self) -> bool:
        """Whether no hint can be sent (Redis is full) or received, though the engine is ready."""
        return self._consuming.is_set() and (
            not self._connected.is_set() or self._ledger.outage.full
        )

    def _consumer_hung(self) -> bool:
        # While the first engine loads, which may take minutes, nobody is there to take hints.
        if self._generator.draining.is_set() or not self._consuming.is_set():
            return False
        if not self._connected.is_set():
            # It waits for Redis to let it in, and patience begins when it is in.
            return self._watch.hung(time.monotonic(), taken=-1, free=False, waiting=0)
        look: dict[str, Any] = {
            "taken": self._generator.hints_taken,
            "free": len(self._generator.active()) < self._settings.concurrency,
            "waiting": self._hints.waiting(self._generator.queue),
        }
        return self._watch.hung(time.monotonic(), **look)
