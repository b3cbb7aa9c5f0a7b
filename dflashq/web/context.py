"""What the monitor's views share: the poller, the samples, the actions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flask import current_app

from dflashq.core.errors import LedgerUnreachableError, UnknownRunError
from dflashq.operations.monitoring.actions import RunActions
from dflashq.operations.monitoring.poller import LedgerPoller
from dflashq.operations.monitoring.sample_cache import SampleCache
from dflashq.operations.monitoring.snapshot import FleetSnapshot, ObservedRun
from dflashq.web.auth import Auth

STREAMS = 12  # live pages at a time
REPOLL_S = 0.5


@dataclass(slots=True)
class MonitorContext:
    """The parts of one monitor.

    `metrics` returns the text for Prometheus. `streams` is acquired by every live page, since each
    holds one of the server's threads.
    """

    poller: LedgerPoller
    samples: SampleCache
    actions: RunActions
    metrics: Callable[[], bytes]
    streams: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(STREAMS)
    )

    def snapshot(self) -> FleetSnapshot:
        """The last snapshot; LedgerUnreachableError before the first. Does not block."""
        snapshot = self.poller.snapshot
        if snapshot is None:
            raise LedgerUnreachableError(
                self.poller.last_error
                or "The monitor has not read the ledger yet: try again in some seconds."
            )
        return snapshot

    def run(self, name: str) -> ObservedRun:
        """A run in the last snapshot. UnknownRunError, LedgerError.

        A run that is missing may have been enqueued since: then this blocks on Redis for a poll.
        """
        snapshot = self.snapshot()
        if name not in snapshot.runs and time.monotonic() - snapshot.at > REPOLL_S:
            snapshot = self.poller.poll()
        observed = snapshot.runs.get(name)
        if observed is None:
            raise UnknownRunError(f"no run named {name!r} is known to the ledger")
        return observed

    def freshness(self) -> dict[str, Any]:
        """How old the numbers are, and why they are not newer. Does not block."""
        snapshot = self.poller.snapshot
        age = None if snapshot is None else round(time.monotonic() - snapshot.at, 1)
        return {"age_s": age, "trouble": self.poller.last_error}


def monitor_of() -> MonitorContext:
    """The monitor of the app that handles the current request."""
    monitor: MonitorContext = current_app.extensions["dflashq"]
    return monitor


def auth_of() -> Auth:
    """The authentication of the app that handles the current request."""
    auth: Auth = current_app.extensions["dflashq.auth"]
    return auth
