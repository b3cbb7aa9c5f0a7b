"""What the leading monitor writes after a look: points, events, `progress.json`, domains."""

from __future__ import annotations

from typing import Any

from dflashq.blobs.s3 import Blobs
from dflashq.ledger.monitor_store import FLEET, MonitorStore
from dflashq.operations.monitoring.domain_counts import DomainCount
from dflashq.operations.monitoring.events import (
    Event,
    fleet_events,
    run_events,
    seen_of_fleet,
    seen_of_run,
)
from dflashq.operations.monitoring.progress_object import PROGRESS_S, progress_row, put_progress
from dflashq.operations.monitoring.snapshot import FleetSnapshot, ObservedRun

LEAD_S = 15.0


class Recorder:
    """Of any number of monitors the one with the lead writes; the others only keep up."""

    def __init__(self, store: MonitorStore, blobs: Blobs, domains: DomainCount) -> None:
        self._store, self._blobs, self._domains = store, blobs, domains
        self._told: dict[str, dict[str, Any]] = {}
        self._written: dict[str, tuple[float, bool]] = {}

    def write(self, seen: FleetSnapshot) -> None:
        """Blocks on Redis, once a minute on S3. DflashqError when either is away."""
        lead = self._store.lead(LEAD_S)
        if lead:
            self._tell_fleet(seen)
            for run, one in seen.runs.items():
                self._note(run, one)
                self._tell_run(run, one)
        else:
            self._told.clear()  # after another one, start from what that one saw
        for run, one in seen.runs.items():
            self._domains.keep_up(run, one, seen.at, lead=lead)
        if lead:
            for run, one in seen.runs.items():
                self._write_progress(run, one, seen.at)

    def _note(self, run: str, one: ObservedRun) -> None:
        if one.status.finished and (self._before(run) or {}).get("finished"):
            return
        point = {
            "at": one.status.now_ms,
            "done": one.view.done,
            "settled": one.view.settled,
            "accepted": one.view.accepted,
            "output_tokens": one.view.output_tokens,
            "tokens_per_s": round(one.speed, 1),
            "working": one.view.working,
            "rejects": one.view.rejects,
        }
        long = {"tokens_per_s": round(one.speed_long, 1)}
        self._store.add_point(run, point, long, last=one.status.finished)

    def _tell_run(self, run: str, one: ObservedRun) -> None:
        now = seen_of_run(
            one.status.state,
            one.status.reason,
            one.status.waits_for,
            one.status.finished,
            {batch.name: batch.state for batch in one.batches},
        )
        before = self._before(run)
        if before == now:
            return
        told = run_events(run, before, now, one.status.now_ms, one.status.dead)
        self._store.tell(run, self._new(run, told))
        self._store.remember(run, now)
        self._told[run] = now

    def _new(self, run: str, told: list[Event]) -> list[Event]:
        """Without a change of state that whoever made it has told already."""
        if not any("state" in one for one in told):
            return told
        latest = next((e for e in self._store.events(run, 20) if "state" in e), {})
        acted = latest["state"] if latest.get("who") else None
        return [one for one in told if "state" not in one or one["state"] != acted]

    def _tell_fleet(self, seen: FleetSnapshot) -> None:
        now = seen_of_fleet(seen.workers)
        before = self._before(FLEET)
        if before == now:
            return
        self._store.tell(FLEET, fleet_events(before, now, seen.now_ms))
        self._store.remember(FLEET, now)
        self._told[FLEET] = now

    def _before(self, run: str) -> dict[str, Any] | None:
        known = self._told.get(run)
        if known is None:
            known = self._store.remembered(run)
            if known is not None:
                self._told[run] = known
        return known

    def _write_progress(self, run: str, one: ObservedRun, now: float) -> None:
        """Every minute, and once more when the run is finished."""
        at, final = self._written.get(run, (None, False))
        if at is not None and (final or now - at < PROGRESS_S) and final == one.status.finished:
            return
        row = progress_row(one.view, one.status.now_ms / 1000, one.forecast)
        put_progress(self._blobs, run, row)
        self._written[run] = (now, one.status.finished)
