"""`progress.json` on S3: the progress of a run, for readers that cannot reach Redis."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from dflashq.blobs.s3 import Blobs
from dflashq.core import keys
from dflashq.core.errors import BlobMissingError
from dflashq.core.estimates.forecast import Forecast
from dflashq.core.model import canonical_json
from dflashq.ledger import Ledger
from dflashq.operations.monitoring.insights import RunView, run_view
from dflashq.operations.monitoring.worker_view import worker_views

PROGRESS_S = 60.0


def progress_row(view: RunView, at_s: float, forecast: Forecast | None = None) -> dict[str, Any]:
    """The content of `progress.json`: the run's view, its forecast, and when they were read.

    `at_s` is that time, in seconds since 1970.
    """
    written = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")
    eta = asdict(forecast) if forecast is not None else None
    return view.to_json() | {"written": written, "forecast": eta}


def put_progress(blobs: Blobs, run: str, row: dict[str, Any]) -> None:
    """Write `progress.json` over the last one. Blocks on S3; safe to repeat. BlobError."""
    blobs.put(keys.progress_json(run), canonical_json(row))


def write_progress(ledger: Ledger, blobs: Blobs, run: str) -> None:
    """Write `progress.json` from the ledger, without a forecast. Blocks on Redis and S3.

    Safe to repeat, in any number of processes. UnknownRunError when the ledger has no such run,
    LedgerError, BlobError.
    """
    status = ledger.status(run)
    view = run_view(status, worker_views(ledger.workers()))
    put_progress(blobs, run, progress_row(view, status.now_ms / 1000))


def read_progress(blobs: Blobs, run: str) -> dict[str, Any] | None:
    """The last `progress.json`, None when it is absent or no JSON. Blocks on S3. BlobError."""
    try:
        row: dict[str, Any] = json.loads(blobs.get(keys.progress_json(run)).body)
    except (BlobMissingError, ValueError):
        return None
    return row
