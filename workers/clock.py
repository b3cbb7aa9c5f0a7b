"""What a worker does by the clock: sweep, reclaim, announce, watch its consumer, close runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from dflashq.core.errors import DflashqError, LedgerError
from dflashq.ledger import Hints, Ledger
from dflashq.operations.room import full_places
from dflashq.operations.sweep import Sweeper
from dflashq.stages.generate import Generator

log = logging.getLogger(__name__)


class ConsumerWatch:
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


class RoomWatch:
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


class Clock:
    """A thread that ticks every `sweep_s`; an outage of the ledger is waited out."""

    def __init__(
        self,
        ledger: Ledger,
        hints: Hints,
        generator: Generator,
        announce: Callable[[], None],
        judge_canaries: Callable[[], None],
        close_runs: Callable[[], None],
        notify: Callable[[], None],
        on_hung: Callable[[], None],
    ) -> None:
        self._settings = generator.settings
        self._hints, self._generator = hints, generator
        self._announce, self._judge_canaries = announce, judge_canaries
        self._close_runs, self._notify, self._on_hung = close_runs, notify, on_hung
        self._sweeper = Sweeper(ledger, hints, self._settings.lease_ttl_s)
        self._watch = ConsumerWatch(self._settings.consumer_patience_s)
        self._room = RoomWatch(generator.close_gate, generator.open_gate)
        self._consuming = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clock", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def consumer_starts(self) -> None:
        """The engine is ready, so hints are taken from now on. Safe to repeat."""
        self._consuming.set()

    def stop(self) -> None:
        """End the thread; blocks until its tick is over. Safe to repeat."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._tick()
            except LedgerError as exc:
                log.warning("the clock waits for the ledger: %s", exc)
            except DflashqError as exc:
                log.warning("the clock skips a tick: %s", exc)
            self._stop.wait(self._settings.sweep_s)

    def _tick(self) -> None:
        # First what this worker can go on with, or the sweep's hints lead others to it.
        self._generator.reclaim()
        self._generator.look_at_peers()
        self._room.look(full_places(self._settings))
        self._sweeper.sweep(self._settings.sweep_s * 0.8)
        self._announce()
        self._judge_canaries()
        self._close_runs()
        self._notify()
        if self._consumer_hung():
            log.critical(
                "the consumer has taken no hint for %.0f s though some wait: this worker hands its "
                "batches back and exits, so that it is started anew",
                self._settings.consumer_patience_s,
            )
            self._on_hung()

    def _consumer_hung(self) -> bool:
        # While the first engine loads, which may take minutes, nobody is there to take hints.
        if self._generator.draining.is_set() or not self._consuming.is_set():
            return False
        look: dict[str, Any] = {
            "taken": self._generator.taken,
            "free": len(self._generator.active()) < self._settings.concurrency,
            "waiting": self._hints.waiting(self._generator.queue),
        }
        return self._watch.hung(time.monotonic(), **look)
