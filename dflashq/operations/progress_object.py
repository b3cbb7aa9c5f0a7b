"""`progress.json` on S3: how a run fares, for whoever cannot reach Redis."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from dflashq.blobs.s3 import Blobs
from dflashq.core import keys
from dflashq.core.errors import BlobMissingError
from dflashq.core.forecast import Forecast
from dflashq.core.model import canonical_json
from dflashq.ledger import Ledger, RunStatus
from dflashq.operations.containment import contained
from dflashq.operations.status import RunView, run_view
from dflashq.operations.worker_view import worker_views

PROGRESS_S = 60.0


def progress_row(view: RunView, at_s: float, forecast: Forecast | None = None) -> dict[str, Any]:
    """The content of `progress.json`: the run's numbers, its sentence, and when they were read."""
    written = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")
    eta = asdict(forecast) if forecast is not None else None
    return view.to_json() | {"written": written, "forecast": eta}


def put_progress(blobs: Blobs, run: str, row: dict[str, Any]) -> None:
    """Write `progress.json` over the last one. Blocks on S3; safe to repeat."""
    blobs.put(keys.progress_json(run), canonical_json(row))


def write_progress(ledger: Ledger, blobs: Blobs, run: str) -> None:
    """Read how a run fares and put it on S3. Blocks on both; safe to repeat, from anywhere.

    UnknownRunError when the ledger knows no such run.
    """
    status = ledger.status(run)
    view = run_view(status, worker_views(ledger.workers()))
    put_progress(blobs, run, progress_row(view, status.now_ms / 1000))


def keep_progress(
    ledger: Ledger, blobs: Blobs, ended: set[str], every_s: float = PROGRESS_S
) -> list[str]:
    """Write `progress.json` where no monitor does; the runs written now.

    One worker at a time, once every `every_s`; a monitor's is left alone while it is fresh, since
    it forecasts as well. `ended` remembers the runs whose last state is on S3. Blocks on Redis and
    S3; safe to repeat, from anywhere.
    """
    if not ledger.progress_lock(every_s):
        return []
    written = []
    for run in ledger.runs():
        with contained(run, "writing progress.json"):
            if _keep(ledger, blobs, run, ended, every_s):
                written.append(run)
    return written


def _keep(ledger: Ledger, blobs: Blobs, run: str, ended: set[str], every_s: float) -> bool:
    status = ledger.status(run)
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


def read_progress(blobs: Blobs, run: str) -> dict[str, Any] | None:
    """What was written last; None when nothing was, or nothing that can be read."""
    try:
        row: dict[str, Any] = json.loads(blobs.get(keys.progress_json(run)).body)
    except (BlobMissingError, ValueError):
        return None
    return row
