"""What the leading monitor writes after a poll: points, events, `progress.json`, domains."""

from __future__ import annotations

from typing import Any

from dflashq.blobs.s3 import Blobs
from dflashq.ledger.monitor_store import FLEET, MonitorStore
from dflashq.operations.monitoring.domain_counts import DomainCount
from dflashq.operations.monitoring.events import (
    Event,
    Snapshot,
    fleet_events,
    fleet_snapshot,
    run_events,
    run_snapshot,
)
from dflashq.operations.monitoring.progress_object import PROGRESS_S, progress_row, put_progress
from dflashq.operations.monitoring.snapshot import FleetSnapshot, ObservedRun

LEAD_S = 15.0


class Recorder:
    """Of any number of monitors, the one that holds the lead writes; the others only read."""

    def __init__(self, store: MonitorStore, blobs: Blobs, domains: DomainCount) -> None:
        self._store, self._blobs, self._domains = store, blobs, domains
        # By run, or FLEET: what the events that are in the feed lead up to.
        self._recorded: dict[str, Snapshot] = {}
        # By run: when its progress.json was written (monotonic), and whether it was finished then.
        self._progress: dict[str, tuple[float, bool]] = {}

    def write(self, fleet: FleetSnapshot) -> None:
        """Write what is new in a snapshot. Blocks on Redis, and once a minute on S3.

        Safe to repeat. LedgerError, BlobError.
        """
        leads = self._store.lead(LEAD_S)
        if leads:
            self._append_fleet_events(fleet)
            for run, observed in fleet.runs.items():
                self._add_point(run, observed)
                self._append_run_events(run, observed)
        else:
            # Should this monitor lead again, it starts from what the other one recorded.
            self._recorded.clear()
        for run, observed in fleet.runs.items():
            self._domains.keep_up(run, observed, fleet.at, lead=leads)
        if leads:
            for run, observed in fleet.runs.items():
                self._write_progress(run, observed, fleet.at)

    def _add_point(self, run: str, observed: ObservedRun) -> None:
        if observed.status.finished and (self._before(run) or {}).get("finished"):
            return
        point = {
            "at": observed.status.now_ms,
            "done": observed.view.done,
            "settled": observed.view.settled,
            "accepted": observed.view.accepted,
            "output_tokens": observed.view.output_tokens,
            "tokens_per_s": round(observed.speed, 1),
            "working": observed.view.working,
            "rejects": observed.view.rejects,
        }
        coarse = {"tokens_per_s": round(observed.speed_long, 1)}
        self._store.add_point(run, point, coarse, last=observed.status.finished)

    def _append_run_events(self, run: str, observed: ObservedRun) -> None:
        status = observed.status
        current = run_snapshot(
            status.state,
            status.reason,
            status.waits_for,
            status.finished,
            {batch.name: batch.state for batch in observed.batches},
        )
        before = self._before(run)
        if before == current:
            return
        events = run_events(run, before, current, status.now_ms, status.dead)
        self._store.append_events(run, self._without_known_actions(run, events))
        self._store.save_snapshot(run, current)
        self._recorded[run] = current

    def _without_known_actions(self, run: str, events: list[Event]) -> list[Event]:
        """Leave out a change of state that the feed has already, as the action of a person."""
        if not any("state" in event for event in events):
            return events
        latest = next((e for e in self._store.events(run, 20) if "state" in e), {})
        state = latest["state"] if latest.get("who") else None
        return [event for event in events if "state" not in event or event["state"] != state]

    def _append_fleet_events(self, fleet: FleetSnapshot) -> None:
        current = fleet_snapshot(fleet.workers)
        before = self._before(FLEET)
        if before == current:
            return
        self._store.append_events(FLEET, fleet_events(before, current, fleet.now_ms))
        self._store.save_snapshot(FLEET, current)
        self._recorded[FLEET] = current

    def _before(self, run: str) -> dict[str, Any] | None:
        """What was recorded last, by this monitor or by one before it."""
        snapshot = self._recorded.get(run)
        if snapshot is None:
            snapshot = self._store.load_snapshot(run)
            if snapshot is not None:
                self._recorded[run] = snapshot
        return snapshot

    def _write_progress(self, run: str, observed: ObservedRun, now: float) -> None:
        """Every minute, and once more when the run is finished."""
        written, final = self._progress.get(run, (None, False))
        finished = observed.status.finished
        recent = written is not None and (final or now - written < PROGRESS_S)
        if recent and final == finished:
            return
        row = progress_row(observed.view, observed.status.now_ms / 1000, observed.forecast)
        put_progress(self._blobs, run, row)
        self._progress[run] = (now, finished)
