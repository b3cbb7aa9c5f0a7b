"""What the monitor's views share: the observer, the shelf of samples, the clients."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flask import current_app

from dflashq.core.errors import LedgerUnreachableError, UnknownRunError
from dflashq.operations.acting import Acting
from dflashq.operations.looks import RunSeen, Seen
from dflashq.operations.observe import Observer
from dflashq.operations.shelf import Shelf
from dflashq.web.doors import Doors

STREAMS = 12
LOOK_AGAIN_S = 0.5


@dataclass(slots=True)
class Monitor:
    """One monitor. Streams are bounded, since each takes one of the server's threads.

    `metrics` gives Prometheus' text.
    """

    observer: Observer
    shelf: Shelf
    acting: Acting
    metrics: Callable[[], bytes]
    streams: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(STREAMS)
    )

    def seen(self) -> Seen:
        """The last look; LedgerUnreachableError before the first."""
        seen = self.observer.seen
        if seen is None:
            raise LedgerUnreachableError(
                self.observer.trouble or "The monitor has not read the ledger yet: a moment."
            )
        return seen

    def run(self, name: str) -> RunSeen:
        """A run at the last look; UnknownRunError when there is none.

        One that is not there may have been enqueued a second ago: then it looks again.
        """
        seen = self.seen()
        if name not in seen.runs and time.monotonic() - seen.at > LOOK_AGAIN_S:
            seen = self.observer.look()
        one = seen.runs.get(name)
        if one is None:
            raise UnknownRunError(f"no run named {name!r} is known to the ledger")
        return one

    def freshness(self) -> dict[str, Any]:
        """How old the numbers are, and why they are not newer."""
        seen = self.observer.seen
        age = None if seen is None else round(time.monotonic() - seen.at, 1)
        return {"age_s": age, "trouble": self.observer.trouble}


def monitor_of() -> Monitor:
    """The monitor of the app that answers now."""
    found: Monitor = current_app.extensions["dflashq"]
    return found


def doors_of() -> Doors:
    """The doors of the app that answers now."""
    found: Doors = current_app.extensions["dflashq.doors"]
    return found
