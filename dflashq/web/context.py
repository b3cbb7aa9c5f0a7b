"""What the monitor's views share: the observer, the shelf of samples, the clients."""

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

STREAMS = 12
LOOK_AGAIN_S = 0.5


@dataclass(slots=True)
class MonitorContext:
    """One monitor. Streams are bounded, since each takes one of the server's threads.

    `metrics` gives Prometheus' text.
    """

    poller: LedgerPoller
    samples: SampleCache
    actions: RunActions
    metrics: Callable[[], bytes]
    streams: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(STREAMS)
    )

    def seen(self) -> FleetSnapshot:
        """The last look; LedgerUnreachableError before the first."""
        seen = self.poller.seen
        if seen is None:
            raise LedgerUnreachableError(
                self.poller.trouble or "The monitor has not read the ledger yet: a moment."
            )
        return seen

    def run(self, name: str) -> ObservedRun:
        """A run at the last look; UnknownRunError when there is none.

        One that is not there may have been enqueued a second ago: then it looks again.
        """
        seen = self.seen()
        if name not in seen.runs and time.monotonic() - seen.at > LOOK_AGAIN_S:
            seen = self.poller.look()
        one = seen.runs.get(name)
        if one is None:
            raise UnknownRunError(f"no run named {name!r} is known to the ledger")
        return one

    def freshness(self) -> dict[str, Any]:
        """How old the numbers are, and why they are not newer."""
        seen = self.poller.seen
        age = None if seen is None else round(time.monotonic() - seen.at, 1)
        return {"age_s": age, "trouble": self.poller.trouble}


def monitor_of() -> MonitorContext:
    """The monitor of the app that answers now."""
    found: MonitorContext = current_app.extensions["dflashq"]
    return found


def doors_of() -> Auth:
    """The doors of the app that answers now."""
    found: Auth = current_app.extensions["dflashq.doors"]
    return found
