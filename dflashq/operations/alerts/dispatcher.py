"""Tells people: a signed webhook and JSON lines in a file, each notice once, from a thread."""

from __future__ import annotations

import itertools
import logging
import queue
import random
import sys
import threading
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from pathlib import Path

import requests
from pydantic import SecretStr

from dflashq.config import Settings
from dflashq.core import metrics
from dflashq.core.alerts import (
    ABOUT_WORKERS,
    DEAD_BATCH,
    EVENTS,
    PAUSE_NAME,
    Alert,
    body_of,
    signature,
)
from dflashq.core.errors import DflashqError, LedgerError
from dflashq.core.json_logging import level_of
from dflashq.ledger import Ledger
from dflashq.ledger.alert_log import MINE, TOLD, AlertLog
from dflashq.operations.alerts.rules import of_run, of_workers, statuses
from dflashq.system.threads import SupervisedThread, report

log = logging.getLogger(__name__)

TRIES, PAUSE_S, PAUSE_CAP_S = 6, 1.0, 30.0
STOP_S = 20.0  # one more try of a slow receiver
_TIMEOUT_S = (5.0, 10.0)
_PASSING = frozenset({408, 425, 429})


class UndeliveredError(DflashqError):
    """A notice did not arrive; `passing` says whether another try may help."""

    def __init__(self, sentence: str, *, passing: bool) -> None:
        self.passing = passing
        super().__init__(sentence)


class Sink(ABC):
    """One way to tell. `name` is part of a notice's identity: each sink gets each notice once."""

    name: str

    @abstractmethod
    def deliver(self, notice: Alert) -> None:
        """Tell, or raise UndeliveredError. Blocks for seconds at most."""


class Webhook(Sink):
    """POSTs a notice; neither its address nor its secret is ever in a message."""

    name = "webhook"

    def __init__(self, url: str, secret: str) -> None:
        self._url, self._secret = url, secret

    def deliver(self, notice: Alert) -> None:
        now = datetime.now(UTC)
        body, stamp = body_of(notice, now.isoformat(timespec="seconds")), str(int(now.timestamp()))
        headers = {
            "Content-Type": "application/json",
            "X-Dflashq-Event": notice.event,
            "X-Dflashq-Id": notice.id,
            "X-Dflashq-Timestamp": stamp,
        }
        if self._secret:
            headers["X-Dflashq-Signature"] = signature(self._secret, stamp, body)
        try:
            answer = requests.post(
                *(self._url, body), headers=headers, timeout=_TIMEOUT_S, allow_redirects=False
            )
        except requests.RequestException as exc:
            passing = isinstance(exc, requests.ConnectionError | requests.Timeout)
            # from None: the exception quotes the address, which may be a secret.
            raise UndeliveredError(f"no answer ({type(exc).__name__})", passing=passing) from None
        if not 200 <= answer.status_code < 300:
            code = answer.status_code
            raise UndeliveredError(
                f"it answered HTTP {code}", passing=code >= 500 or code in _PASSING
            )


class JsonLinesFile(Sink):
    """Appends a notice as one JSON line to a file, or to stdout for `-`."""

    name = "file"

    def __init__(self, path: str) -> None:
        self._path = path

    def deliver(self, notice: Alert) -> None:
        line = body_of(notice, datetime.now(UTC).isoformat(timespec="seconds")).decode() + "\n"
        try:
            if self._path == "-":
                sys.stdout.write(line)
                sys.stdout.flush()
                return
            path = Path(self._path)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as out:
                out.write(line)
        except OSError as exc:
            raise UndeliveredError(f"{self._path}: {exc.strerror}", passing=True) from exc


def sinks_of(settings: Settings) -> list[Sink]:
    """The sinks that the settings name."""
    sinks: list[Sink] = []
    if settings.notify_file:
        sinks.append(JsonLinesFile(settings.notify_file))
    if url := _plain(settings.webhook_url):
        sinks.append(Webhook(url, _plain(settings.webhook_secret)))
    return sinks


def _plain(secret: SecretStr | None) -> str:
    return "" if secret is None else secret.get_secret_value()


class AlertDispatcher:
    """Takes what is due and tells it from a thread of its own; without sinks it does nothing.

    Any number of processes may check side by side: the ledger gives each notice to one of them. A
    process that dies before a notice has arrived leaves it to the others.
    """

    def __init__(self, settings: Settings, ledger: Ledger, pause_s: float = PAUSE_S) -> None:
        self._ledger, self._notices = ledger, AlertLog(settings)
        self._sinks, self._courier = sinks_of(settings), AlertDelivery(self._notices, pause_s)
        self._look_s = settings.sweep_s * 0.8
        self._known_dead: dict[str, set[str]] = {}
        self._active: set[str] = set()

    def check(self) -> None:
        """Tell whatever is due and was not told yet. Blocks on Redis, never for a delivery.

        An outage of Redis is waited out: the next check finds the same.
        """
        try:
            if self._sinks and self._notices.looking(self._look_s):
                self._check()
        except LedgerError as exc:
            log.log(level_of(exc), "notices wait for the ledger: %s", exc)

    def _check(self) -> None:
        runs = statuses(self._ledger)
        self._free_pauses({status.name for status in runs if status.state == "active"})
        for status in runs:
            known = self._known_dead.setdefault(status.name, set())
            known.intersection_update(status.dead)  # one that was revived may die again
            for notice in of_run(self._ledger, status, known):
                if self._tell(notice) and notice.event == DEAD_BATCH:
                    known.add(notice.details["batch"])
        for notice in of_workers(self._ledger):
            self._tell(notice)

    def tell(self, notice: Alert) -> None:
        """Tell one notice that no check would find. Blocks on Redis, never for a delivery."""
        try:
            self._tell(notice)
        except LedgerError as exc:
            log.error("nobody is told: %s (%s)", notice.sentence, exc)

    def _tell(self, notice: Alert) -> bool:
        """Tell it unless somebody is at it; True once nothing is left to tell."""
        states = [self._courier.send(sink, notice) for sink in self._sinks]
        return all(state == TOLD for state in states)

    def stop(self) -> None:
        """Try what is left once more, then end the thread. Blocks for seconds; safe to repeat."""
        self._courier.stop()

    def _free_pauses(self, active: set[str]) -> None:
        """A run that goes on may be paused again, which is another notice."""
        for run in active - self._active:
            for sink in self._sinks:
                self._notices.give_back(run, f"{sink.name}:{PAUSE_NAME}")
        self._active = active


class AlertDelivery:
    """The thread that delivers, with retries; `send` takes a notice for it from the ledger."""

    def __init__(self, notices: AlertLog, pause_s: float) -> None:
        self._notices, self._pause_s = notices, pause_s
        self._refused: set[tuple[str, str]] = set()
        self._queue: queue.SimpleQueue[tuple[Sink, Alert] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread: SupervisedThread | None = None
        for event in EVENTS:  # a series that begins at 1 shows no increase, and alerts none
            metrics.NOTICES.add(0, event=event, outcome="given_up")

    def send(self, sink: Sink, notice: Alert) -> str:
        """`mine`, `taken` or `told`: how it stands with this notice. LedgerError."""
        if (sink.name, notice.id) in self._refused:
            return TOLD
        state = self._notices.take(notice.about, _name(sink, notice))
        if state == MINE:
            self._start()
            self._queue.put((sink, notice))
        return state

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.stop(STOP_S)

    def _start(self) -> None:
        if self._thread is None:
            made = SupervisedThread("notify", self._work, wake=lambda: self._queue.put(None))
            made.start()
            self._thread = made

    def _work(self) -> None:
        """Until it is told to stop: what is in the queue by then is tried first."""
        while (next_one := self._queue.get()) is not None:
            sink, notice = next_one
            try:
                self._deliver(sink, notice)
            except LedgerError as exc:
                log.warning("the ledger did not hear of it: notice=%s: %s", notice.event, exc)
            except Exception as exc:  # noqa: BLE001 - told, counted, and the next notice goes on
                report("notify", exc, f"telling {notice.event}")

    def _deliver(self, sink: Sink, notice: Alert) -> None:
        pause = self._pause_s
        for number in itertools.count(1):
            try:
                sink.deliver(notice)
            except UndeliveredError as exc:
                if not exc.passing or number == TRIES or self._stop.is_set():
                    self._give_up(sink, notice, exc)
                    return
                metrics.NOTICES.add(event=notice.event, outcome="retried")
                self._stop.wait(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, PAUSE_CAP_S)
            else:
                self._told(sink, notice)
                return

    def _told(self, sink: Sink, notice: Alert) -> None:
        metrics.NOTICES.add(event=notice.event, outcome="sent")
        log.info("told: notice=%s about=%s sink=%s", notice.event, notice.about, sink.name)
        for_good = notice.event not in ABOUT_WORKERS
        self._notices.told(notice.about, _name(sink, notice), for_good=for_good)

    def _give_up(self, sink: Sink, notice: Alert, exc: UndeliveredError) -> None:
        """Another process, or this one at a later check, tries again; a refusal is final here."""
        metrics.NOTICES.add(event=notice.event, outcome="given_up")
        log.error(
            "a notice did not arrive: notice=%s about=%s sink=%s: %s. It said: %s",
            *(notice.event, notice.about, sink.name, exc, notice.sentence),
        )
        if not exc.passing:
            self._refused.add((sink.name, notice.id))
        self._notices.give_back(notice.about, _name(sink, notice))


def _name(sink: Sink, notice: Alert) -> str:
    return f"{sink.name}:{notice.name}"
