"""One reader for any number of people: looks at the ledger every few seconds.

A view never asks Redis: it is answered from the last look, which says how old it is. So a page
costs the same with one run or with 10,000 batches, and an outage of Redis shows as age.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from statistics import mean
from typing import Any

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core.errors import DflashqError, LedgerError
from dflashq.core.estimates.forecast import Forecast, forecast, lengths
from dflashq.core.json_logging import level_of
from dflashq.ledger import Ledger, RunStatus
from dflashq.ledger.monitor_store import COARSE, FINE, FLEET, MonitorStore
from dflashq.operations.monitoring.domain_counts import DomainCount
from dflashq.operations.monitoring.insights import run_view
from dflashq.operations.monitoring.recorder import Recorder
from dflashq.operations.monitoring.snapshot import (
    Batch,
    Counts,
    FleetSnapshot,
    ObservedRun,
    known_batches,
    left_mean,
    prompts_and_tokens,
    signature,
    with_leases,
)
from dflashq.operations.monitoring.worker_view import WorkerView, worker_views
from dflashq.system.threads import SupervisedThread

log = logging.getLogger(__name__)

LOOK_S = 2.0
NOT_RECORDED = "the history and the events are not recorded meanwhile"
SPEED_OVER_S, RATES_OVER_S = 60.0, 900.0


class LedgerPoller:
    """The reader and its thread; everything may be called from any thread."""

    def __init__(self, settings: Settings, ledger: Ledger, blobs: Blobs) -> None:
        self._ledger = ledger
        self.store = MonitorStore(settings)
        self._domains = DomainCount(blobs, self.store)
        self._recorder = Recorder(self.store, blobs, self._domains)
        self._rates: dict[str, deque[tuple[float, float]]] = {}
        self._seen: FleetSnapshot | None = None
        self._trouble = self._unrecorded = ""
        self._looking = threading.Lock()
        self._changed = threading.Condition()
        self._thread = SupervisedThread("observer", self.turn, pause_s=LOOK_S, wake=self._wake)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Ask the thread to end, and whoever waits for a look to wait no more."""
        self._thread.ask_stop()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread and let another monitor lead. Blocks until its look is over."""
        self._thread.stop()
        try:
            self.store.give_up_lead()
        except LedgerError as exc:
            log.info("the lead falls by itself: %s", exc)

    @property
    def seen(self) -> FleetSnapshot | None:
        """The last look; None before the first."""
        return self._seen

    @property
    def trouble(self) -> str:
        """Why the last look is not newer, or what of it is not recorded, in a sentence.

        Empty when all is well.
        """
        return self._trouble or self._unrecorded

    @property
    def stopped(self) -> bool:
        """The monitor is ending."""
        return self._thread.stopping

    def domains(self, run: str) -> dict[str, Any] | None:
        """The domains as they were counted last; None before that."""
        return self._domains.of(run)

    def series(self, run: str, *, long: bool) -> list[dict[str, Any]]:
        """The numbers over time, oldest first: two hours, or (`long`) a month. Blocks on Redis."""
        return self.store.points(run, COARSE if long else FINE)

    def events(self, run: str, limit: int) -> list[dict[str, Any]]:
        """The feed, newest first: the run's own and the fleet's ("": that alone). Blocks."""
        found = self.store.events(FLEET, limit)
        if run:
            found = self.store.events(run, limit) + found
            found.sort(key=lambda one: -one["at"])
        return found[:limit]

    def story(self, run: str, batch: str) -> list[dict[str, Any]]:
        """What happened to a batch, oldest first: {at (ms), what}. Blocks on Redis."""
        return self._ledger.story(run, batch)

    def wait(self, after: float, timeout_s: float) -> None:
        """Block until there is a look newer than `after`, the trouble changed, or it is the end."""
        with self._changed:
            before = self.trouble

            def newer() -> bool:
                fresh = self._seen is not None and self._seen.at > after
                return fresh or self.trouble != before or self.stopped

            self._changed.wait_for(newer, timeout_s)

    def look(self) -> FleetSnapshot:
        """Read everything once, in the caller's thread. LedgerError when Redis is away."""
        with self._looking:
            began = time.monotonic()
            workers = self._ledger.workers()
            views = worker_views(workers)
            now_ms = int(self._ledger.now_s() * 1000)
            before = self._seen.runs if self._seen is not None else {}
            found = {
                run: self._look_at(self._ledger.status(run), views, before.get(run), began)
                for run in sorted(self._ledger.runs())
            }
            seen = FleetSnapshot(began, now_ms, found, workers, views)
        with self._changed:
            self._seen, self._trouble = seen, ""
            self._changed.notify_all()
        return seen

    # --- the thread

    def turn(self) -> None:
        """Look, and write what the leading monitor writes. An outage becomes the trouble.

        A Redis that refuses writes alone hides no numbers: they go on, unrecorded. What nobody
        expected becomes the trouble too, and is raised as well: the thread tells it.
        """
        try:
            self._set_trouble("", self._record(self.look()))
        except LedgerError as exc:
            self._set_trouble(_first_clause(exc))
            log.log(level_of(exc), "the monitor waits for the ledger: %s", exc)
        except Exception as exc:
            self._set_trouble(f"The monitor met an error of its own ({type(exc).__name__})")
            raise

    def _record(self, seen: FleetSnapshot) -> str:
        """Write what is to be written; what of it is not, in a sentence."""
        try:
            self._recorder.write(seen)
        except LedgerError as exc:
            log.log(level_of(exc), "the monitor records nothing: %s", exc)
            return f"{_first_clause(exc)}: {NOT_RECORDED}"
        except DflashqError as exc:
            log.warning("the monitor could not write: %s", exc)
        return ""

    def _set_trouble(self, sentence: str, unrecorded: str = "") -> None:
        with self._changed:
            if (self._trouble, self._unrecorded) != (sentence, unrecorded):
                self._trouble, self._unrecorded = sentence, unrecorded
                self._changed.notify_all()

    # --- one run

    def _look_at(
        self, status: RunStatus, workers: list[WorkerView], before: ObservedRun | None, now: float
    ) -> ObservedRun:
        batches, counts, version = self._batches(status, before)
        speeds = self._speeds(status, workers, now)
        lately, minute = _since(speeds, 0.0), _since(speeds, now - SPEED_OVER_S)
        ahead = self._forecast(status, counts, lately)
        view = run_view(
            status,
            workers,
            mean(minute) if minute else None,
            None if ahead is None else ahead.left_s,
        )
        moment, long = _since(speeds, now - FINE.every_s), _since(speeds, now - COARSE.every_s)
        return ObservedRun(
            *(status, view, ahead, batches, counts, version),
            speed=mean(moment) if moment else 0.0,
            speed_long=mean(long) if long else 0.0,
        )

    def _batches(
        self, status: RunStatus, before: ObservedRun | None
    ) -> tuple[tuple[Batch, ...], Counts, int]:
        """Read anew only when one of them changed: at 10,000 they are most of the work."""
        if before is None:
            batches = known_batches(self._ledger.batch_states(status.name), status.waits_for)
            return batches, self._counts(status.name, batches, {}), 1
        if signature(before.status) != signature(status):
            batches = known_batches(self._ledger.batch_states(status.name), status.waits_for)
            counts = self._counts(status.name, batches, before.counts)
            return batches, counts, before.version + 1
        if before.status.leased != status.leased:
            batches = with_leases(before.batches, status.leased)
            return batches, before.counts, before.version + 1
        return before.batches, before.counts, before.version

    def _counts(self, run: str, batches: tuple[Batch, ...], known: Counts) -> Counts:
        done = [batch.name for batch in batches if batch.state == "done"]
        new = [name for name in done if name not in known]
        if not new and len(done) == len(known):
            return known
        fresh = self.store.counts(run, new)
        return {name: known.get(name) or fresh.get(name, {}) for name in done}

    def _speeds(
        self, status: RunStatus, workers: list[WorkerView], now: float
    ) -> list[tuple[float, float]]:
        """(when, tokens/s) of the last quarter of an hour."""
        kept = self._rates.get(status.name)
        if kept is None:
            kept = self._rates[status.name] = deque(self._noted(status, now))
        if not status.finished and status.state == "active":
            speed = sum(w.tokens_per_s for w in workers if w.alive and w.works_on(status.name))
            kept.append((now, speed))
        while kept and kept[0][0] < now - RATES_OVER_S:
            kept.popleft()
        return list(kept)

    def _noted(self, status: RunStatus, now: float) -> list[tuple[float, float]]:
        """What a monitor before this one noted, on this process's clock."""
        points = self.store.points(status.name, FINE)
        at = [(now - (status.now_ms - p["at"]) / 1000, p["tokens_per_s"]) for p in points]
        return [(when, rate) for when, rate in at if when >= now - RATES_OVER_S]

    def _forecast(self, status: RunStatus, counts: Counts, rates: list[float]) -> Forecast | None:
        if status.state != "active" or status.finished:
            return None
        settled = status.counters.get("prompts", 0)
        known = lengths([prompts_and_tokens(row) for row in counts.values()])
        domains = self.domains(status.name)
        left = None
        if known is not None and domains is not None and status.prompts:
            left = left_mean(domains, settled / status.prompts, known.mean)
        return forecast(status.prompts - settled, known, rates, left)


def _first_clause(exc: LedgerError) -> str:
    """The part for everybody; what was being asked is for the log."""
    return str(exc).partition(" while ")[0]


def _since(speeds: list[tuple[float, float]], when: float) -> list[float]:
    return [speed for at, speed in speeds if at >= when]
