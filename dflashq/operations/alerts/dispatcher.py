"""Alerts that are due are delivered to every sink, each once, by a thread."""

from __future__ import annotations

import itertools
import logging
import queue
import random
import threading

from dflashq.config import Settings
from dflashq.core import metrics
from dflashq.core.alerts import ABOUT_WORKERS, DEAD_BATCH, EVENTS, PAUSE_NAME, Alert
from dflashq.core.backoff import delay_s
from dflashq.core.errors import LedgerError
from dflashq.core.json_logging import level_of
from dflashq.core.states import RunState
from dflashq.ledger import Ledger
from dflashq.ledger.alert_log import MINE, TOLD, AlertLog
from dflashq.operations.alerts.rules import of_run, of_workers
from dflashq.operations.alerts.sinks import Sink, UndeliveredError, sinks_of
from dflashq.operations.runs.listing import statuses
from dflashq.system.threads import SupervisedThread, report

log = logging.getLogger(__name__)

TRIES, PAUSE_S, PAUSE_CAP_S = 6, 1.0, 30.0
STOP_S = 20.0  # one more try of a slow receiver


class AlertDispatcher:
    """Finds the alerts that are due and hands them to its thread; without sinks it does nothing.

    Any number of processes may check side by side: the ledger gives each alert to one of them. When
    a process dies before an alert has arrived, another one delivers it.
    """

    def __init__(self, settings: Settings, ledger: Ledger, pause_s: float = PAUSE_S) -> None:
        self._ledger, self._alert_log = ledger, AlertLog(settings)
        self._sinks = sinks_of(settings)
        self._delivery = AlertDelivery(self._alert_log, pause_s)
        self._check_s = settings.sweep_s * 0.8
        self._known_dead: dict[str, set[str]] = {}
        self._active: set[str] = set()

    def check(self) -> None:
        """Deliver every alert that is due and was not delivered yet. Safe to repeat.

        Blocks on Redis, never on a delivery. An outage of Redis is logged: the next check finds the
        same alerts.
        """
        try:
            if self._sinks and self._alert_log.try_lock(self._check_s):
                self._check()
        except LedgerError as exc:
            log.log(level_of(exc), "notices wait for the ledger: %s", exc)

    def _check(self) -> None:
        runs = statuses(self._ledger)
        active = {status.name for status in runs if status.state == RunState.ACTIVE}
        self._release_pauses(active)
        for status in runs:
            known = self._known_dead.setdefault(status.name, set())
            known.intersection_update(status.dead)  # a batch that was revived may die again
            for alert in of_run(self._ledger, status, known):
                if self._dispatch(alert) and alert.event == DEAD_BATCH:
                    known.add(alert.details["batch"])
        for alert in of_workers(self._ledger):
            self._dispatch(alert)

    def dispatch(self, alert: Alert) -> None:
        """Deliver an alert that no check would find.

        Blocks on Redis, never on a delivery. Safe to repeat. An outage of Redis is logged, and the
        alert is lost.
        """
        try:
            self._dispatch(alert)
        except LedgerError as exc:
            log.error("nobody is told: %s (%s)", alert.sentence, exc)

    def _dispatch(self, alert: Alert) -> bool:
        """Deliver it unless another process does; True once every sink has it."""
        states = [self._delivery.send(sink, alert) for sink in self._sinks]
        return all(state == TOLD for state in states)

    def stop(self) -> None:
        """Try what is left once more, then end the thread. Blocks for seconds; safe to repeat."""
        self._delivery.stop()

    def _release_pauses(self, active: set[str]) -> None:
        """A run that has gone on may be paused again, which is due as another alert."""
        for run in active - self._active:
            for sink in self._sinks:
                self._alert_log.release(run, f"{sink.name}:{PAUSE_NAME}")
        self._active = active


class AlertDelivery:
    """The thread that delivers, with retries; `send` acquires an alert for it in the ledger."""

    def __init__(self, alert_log: AlertLog, pause_s: float) -> None:
        self._alert_log, self._pause_s = alert_log, pause_s
        self._refused: set[tuple[str, str]] = set()
        self._queue: queue.SimpleQueue[tuple[Sink, Alert] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread: SupervisedThread | None = None
        for event in EVENTS:  # a series that begins at 1 shows no increase, and alerts none
            metrics.NOTICES.add(0, event=event, outcome="given_up")

    def send(self, sink: Sink, alert: Alert) -> str:
        """Queue an alert unless it has arrived, or another process delivers it.

        Returns MINE (queued now), TAKEN or TOLD. Blocks on Redis. Safe to repeat. LedgerError.
        """
        if (sink.name, alert.id) in self._refused:
            return TOLD
        state = self._alert_log.acquire(alert.about, _name(sink, alert))
        if state == MINE:
            self._start()
            self._queue.put((sink, alert))
        return state

    def stop(self) -> None:
        """End the thread once each queued alert was tried. Blocks at most `STOP_S`."""
        self._stop.set()
        if self._thread is not None:
            self._thread.stop(STOP_S)

    def _start(self) -> None:
        if self._thread is None:
            thread = SupervisedThread("notify", self._work, wake=lambda: self._queue.put(None))
            thread.start()
            self._thread = thread

    def _work(self) -> None:
        """Deliver until the thread is stopped; what is in the queue by then is tried first."""
        while (queued := self._queue.get()) is not None:
            sink, alert = queued
            try:
                self._deliver(sink, alert)
            except LedgerError as exc:
                log.warning("the ledger did not hear of it: notice=%s: %s", alert.event, exc)
            except Exception as exc:  # noqa: BLE001 - logged, counted, and the next alert goes on
                report("notify", exc, f"telling {alert.event}")

    def _deliver(self, sink: Sink, alert: Alert) -> None:
        for number in itertools.count(1):
            try:
                sink.deliver(alert)
            except UndeliveredError as exc:
                if not exc.transient or number == TRIES or self._stop.is_set():
                    self._give_up(sink, alert, exc)
                    return
                metrics.NOTICES.add(event=alert.event, outcome="retried")
                jitter = random.uniform(0.5, 1.0)
                self._stop.wait(delay_s(number, self._pause_s, PAUSE_CAP_S, jitter=jitter))
            else:
                self._mark_sent(sink, alert)
                return

    def _mark_sent(self, sink: Sink, alert: Alert) -> None:
        metrics.NOTICES.add(event=alert.event, outcome="sent")
        log.info("told: notice=%s about=%s sink=%s", alert.event, alert.about, sink.name)
        for_good = alert.event not in ABOUT_WORKERS
        self._alert_log.mark_sent(alert.about, _name(sink, alert), for_good=for_good)

    def _give_up(self, sink: Sink, alert: Alert, exc: UndeliveredError) -> None:
        """Release the alert for a later check, here or elsewhere; a refusal is final here."""
        metrics.NOTICES.add(event=alert.event, outcome="given_up")
        log.error(
            "a notice did not arrive: notice=%s about=%s sink=%s: %s. It said: %s",
            alert.event,
            alert.about,
            sink.name,
            exc,
            alert.sentence,
        )
        if not exc.transient:
            self._refused.add((sink.name, alert.id))
        self._alert_log.release(alert.about, _name(sink, alert))


def _name(sink: Sink, alert: Alert) -> str:
    return f"{sink.name}:{alert.name}"
