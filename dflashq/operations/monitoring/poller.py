"""One reader of the ledger for any number of viewers: it polls every few seconds.

A view never asks Redis for counts. It is answered from the last snapshot, which says how old it
is. So a page costs the same with one run or with 10,000 batches, and an outage of Redis shows as
the age of the numbers.
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
from dflashq.core.states import BatchState, RunState
from dflashq.ledger import Ledger, RunStatus
from dflashq.ledger.models import BatchStatus
from dflashq.ledger.monitor_store import COARSE, FINE, FLEET, MonitorStore
from dflashq.operations.monitoring.domain_counts import DomainCount
from dflashq.operations.monitoring.insights import run_view
from dflashq.operations.monitoring.recorder import Recorder
from dflashq.operations.monitoring.snapshot import (
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
from dflashq.operations.runs.listing import statuses
from dflashq.system.threads import SupervisedThread

log = logging.getLogger(__name__)

POLL_S = 2.0
NOT_RECORDED = "the history and the events are not recorded meanwhile"
SPEED_OVER_S, RATES_OVER_S = 60.0, 900.0


class LedgerPoller:
    """The reader and its thread. Every method may be called from any thread.

    `poll` and what says so block on Redis; the rest is answered from memory.
    """

    def __init__(self, settings: Settings, ledger: Ledger, blobs: Blobs) -> None:
        self._ledger = ledger
        self.store = MonitorStore(settings)
        self._domains = DomainCount(blobs, self.store)
        self._recorder = Recorder(self.store, blobs, self._domains)
        self._rates: dict[str, deque[tuple[float, float]]] = {}
        self._snapshot: FleetSnapshot | None = None
        self._last_error = self._unrecorded = ""
        self._polling = threading.Lock()
        self._changed = threading.Condition()
        self._thread = SupervisedThread(
            "observer", self.poll_and_record, pause_s=POLL_S, wake=self._wake
        )

    def start(self) -> None:
        """Start to poll. Does not block."""
        self._thread.start()

    def end(self) -> None:
        """Ask the thread to end, and wake whoever is in `wait`. Does not block."""
        self._thread.ask_stop()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread and let another monitor lead. Blocks until its poll is over."""
        self._thread.stop()
        try:
            self.store.give_up_lead()
        except LedgerError as exc:
            log.info("the lead ends by itself within seconds: %s", exc)

    @property
    def snapshot(self) -> FleetSnapshot | None:
        """What the last successful poll read; None before the first."""
        return self._snapshot

    @property
    def last_error(self) -> str:
        """Why the snapshot is not newer, or what of it is not recorded, in a sentence.

        Empty when the last poll succeeded and was recorded.
        """
        return self._last_error or self._unrecorded

    @property
    def stopped(self) -> bool:
        """The monitor is ending."""
        return self._thread.stopping

    def domains(self, run: str) -> dict[str, Any] | None:
        """The domains as they were counted last (`count_domains`); None before the first count."""
        return self._domains.of(run)

    def series(self, run: str, *, long: bool) -> list[dict[str, Any]]:
        """The numbers of a run over time, oldest first. Blocks on Redis. LedgerError.

        Two hours of points 10 s apart or, with `long`, a month of points 10 min apart.
        """
        return self.store.points(run, COARSE if long else FINE)

    def events(self, run: str, limit: int) -> list[dict[str, Any]]:
        """The latest events of a run and of the fleet, newest first. Blocks on Redis. LedgerError.

        With an empty `run`, those of the fleet alone.
        """
        events = self.store.events(FLEET, limit)
        if run:
            events = self.store.events(run, limit) + events
            events.sort(key=lambda event: -event["at"])
        return events[:limit]

    def story(self, run: str, batch: str) -> list[dict[str, Any]]:
        """What happened to a batch, oldest first: {at (ms), what}. Blocks on Redis. LedgerError."""
        return self._ledger.story(run, batch)

    def wait(self, after: float, timeout_s: float) -> None:
        """Block until there is news, at most `timeout_s`.

        News is a snapshot taken after `after` (monotonic seconds), another `last_error`, or the
        end of the poller.
        """
        with self._changed:
            error_before = self.last_error

            def has_news() -> bool:
                fresh = self._snapshot is not None and self._snapshot.at > after
                return fresh or self.last_error != error_before or self.stopped

            self._changed.wait_for(has_news, timeout_s)

    def poll(self) -> FleetSnapshot:
        """Read the whole ledger once, in the caller's thread, and keep the snapshot.

        Blocks on Redis; two callers take turns. Safe to repeat. LedgerError.
        """
        with self._polling:
            began = time.monotonic()
            workers = self._ledger.workers()
            views = worker_views(workers)
            now_ms = int(self._ledger.now_s() * 1000)
            before = self._snapshot.runs if self._snapshot is not None else {}
            observed = {
                status.name: self._observe(status, views, before.get(status.name), began)
                for status in statuses(self._ledger)
            }
            snapshot = FleetSnapshot(began, now_ms, observed, workers, views)
        with self._changed:
            self._snapshot, self._last_error = snapshot, ""
            self._changed.notify_all()
        return snapshot

    # --- the thread

    def poll_and_record(self) -> None:
        """Poll, and write what the leading monitor writes. Blocks on Redis and S3.

        An outage is not raised but becomes `last_error`. Where Redis refuses writes alone, the
        numbers go on and are not recorded. An unexpected error becomes `last_error` and is raised,
        so that the thread logs and counts it.
        """
        try:
            self._set_last_error("", self._record(self.poll()))
        except LedgerError as exc:
            self._set_last_error(_first_clause(exc))
            log.log(level_of(exc), "the monitor waits for the ledger: %s", exc)
        except Exception as exc:
            self._set_last_error(f"The monitor met an error of its own ({type(exc).__name__})")
            raise

    def _record(self, snapshot: FleetSnapshot) -> str:
        """Write what the leading monitor writes; returns why it is not recorded, or nothing."""
        try:
            self._recorder.write(snapshot)
        except LedgerError as exc:
            log.log(level_of(exc), "the monitor records nothing: %s", exc)
            return f"{_first_clause(exc)}: {NOT_RECORDED}"
        except DflashqError as exc:
            log.warning("the monitor could not write: %s", exc)
        return ""

    def _set_last_error(self, error: str, unrecorded: str = "") -> None:
        with self._changed:
            if (self._last_error, self._unrecorded) != (error, unrecorded):
                self._last_error, self._unrecorded = error, unrecorded
                self._changed.notify_all()

    # --- one run

    def _observe(
        self, status: RunStatus, workers: list[WorkerView], before: ObservedRun | None, now: float
    ) -> ObservedRun:
        batches, counts, version = self._batches(status, before)
        speeds = self._speeds(status, workers, now)
        all_rates, minute = [rate for _, rate in speeds], _rates_since(speeds, now - SPEED_OVER_S)
        ahead = self._forecast(status, counts, all_rates)
        view = run_view(
            status,
            workers,
            mean(minute) if minute else None,
            None if ahead is None else ahead.left_s,
        )
        fine = _rates_since(speeds, now - FINE.every_s)
        coarse = _rates_since(speeds, now - COARSE.every_s)
        return ObservedRun(
            status=status,
            view=view,
            forecast=ahead,
            batches=batches,
            counts=counts,
            version=version,
            speed=mean(fine) if fine else 0.0,
            speed_long=mean(coarse) if coarse else 0.0,
        )

    def _batches(
        self, status: RunStatus, before: ObservedRun | None
    ) -> tuple[tuple[BatchStatus, ...], Counts, int]:
        """The batches, the counts of the done ones, and the version of both.

        They are read again only when one of them changed: 10,000 are most of the work of a poll.
        """
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

    def _counts(self, run: str, batches: tuple[BatchStatus, ...], known: Counts) -> Counts:
        done = [batch.name for batch in batches if batch.state == BatchState.DONE]
        new = [name for name in done if name not in known]
        if not new and len(done) == len(known):
            return known
        fresh = self.store.counts(run, new)
        return {name: known.get(name) or fresh.get(name, {}) for name in done}

    def _speeds(
        self, status: RunStatus, workers: list[WorkerView], now: float
    ) -> list[tuple[float, float]]:
        """(time, tokens/s) of the last quarter of an hour, oldest first; monotonic seconds."""
        kept = self._rates.get(status.name)
        if kept is None:
            kept = self._rates[status.name] = deque(self._recorded_speeds(status, now))
        if not status.finished and status.state == RunState.ACTIVE:
            speed = sum(w.tokens_per_s for w in workers if w.alive and w.works_on(status.name))
            kept.append((now, speed))
        while kept and kept[0][0] < now - RATES_OVER_S:
            kept.popleft()
        return list(kept)

    def _recorded_speeds(self, status: RunStatus, now: float) -> list[tuple[float, float]]:
        """What an earlier monitor recorded in Redis, on this process's clock."""
        points = self.store.points(status.name, FINE)
        speeds = [(now - (status.now_ms - p["at"]) / 1000, p["tokens_per_s"]) for p in points]
        return [(at, rate) for at, rate in speeds if at >= now - RATES_OVER_S]

    def _forecast(self, status: RunStatus, counts: Counts, rates: list[float]) -> Forecast | None:
        if status.state != RunState.ACTIVE or status.finished:
            return None
        settled = status.counters.get("prompts", 0)
        known = lengths([prompts_and_tokens(row) for row in counts.values()])
        domains = self.domains(status.name)
        left = None
        if known is not None and domains is not None and status.prompts:
            left = left_mean(domains, settled / status.prompts, known.mean)
        return forecast(status.prompts - settled, known, rates, left)


def _first_clause(exc: LedgerError) -> str:
    """The error without its last clause, which says what was being read: that is for the log."""
    return str(exc).partition(" while ")[0]


def _rates_since(speeds: list[tuple[float, float]], since: float) -> list[float]:
    return [rate for at, rate in speeds if at >= since]
