"""`progress.json` where no monitor writes it: one worker at a time writes it instead."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dflashq.blobs.s3 import Blobs
from dflashq.ledger import Ledger, RunStatus
from dflashq.operations.housekeeping.containment import contained
from dflashq.operations.monitoring.progress_object import PROGRESS_S, read_progress, write_progress
from dflashq.operations.runs.listing import status_if_known


def keep_progress(
    ledger: Ledger, blobs: Blobs, ended: set[str], every_s: float = PROGRESS_S
) -> list[str]:
    """Write the `progress.json` of each run whose own is missing or old; returns those runs.

    One worker at a time does it, once in `every_s` seconds. An object that a monitor wrote is left
    alone while it is fresh, since it holds a forecast too. `ended` is the caller's memory between
    two calls: the runs whose last state is on S3. A failure of one run is logged and the others go
    on. Blocks on Redis and S3; safe to repeat, in any number of processes.
    LedgerUnreachableError.
    """
    if not ledger.progress_lock(every_s):
        return []
    written = []
    for run in ledger.runs():
        with contained(run, "writing progress.json"):
            if _write_if_stale(ledger, blobs, run, ended, every_s):
                written.append(run)
    return written


def _write_if_stale(
    ledger: Ledger, blobs: Blobs, run: str, ended: set[str], every_s: float
) -> bool:
    status = status_if_known(ledger, run)
    if status is None:
        return False
    if not status.finished:
        ended.discard(run)  # revived, or rejected prompts of it are run again
    stale = run not in ended and _is_stale(read_progress(blobs, run), status, 1.5 * every_s)
    if stale:
        write_progress(ledger, blobs, run)
    if status.finished:
        ended.add(run)
    return stale


def _is_stale(row: dict[str, Any] | None, status: RunStatus, age_s: float) -> bool:
    if row is None or row["finished"] != status.finished:
        return True
    at_s = datetime.fromisoformat(row["written"]).timestamp()
    return not status.finished and status.now_ms / 1000 - at_s > age_s
