"""Pause, resume and cancel a run: in the ledger at once, mirrored on S3."""

from __future__ import annotations

from dflashq.blobs import runs
from dflashq.blobs.s3 import Blobs
from dflashq.core.errors import DflashqError
from dflashq.ledger import Hints, Ledger
from dflashq.operations.sweep import hint_pending

ACTIVE, PAUSED, CANCELLED = "active", "paused", "cancelled"


def pause(ledger: Ledger, blobs: Blobs, run: str, reason: str) -> str:
    """Workers hand the run's batches back within seconds; what is finished stays kept."""
    return _change(ledger, blobs, run, PAUSED, reason)


def resume(ledger: Ledger, blobs: Blobs, hints: Hints, run: str, *, accept: bool = False) -> str:
    """Go on where the run was; its pending batches are hinted again.

    `accept` takes the results as they are: the canary counts as passed, and any share of
    rejections is tolerated from now on. It is recorded in the run's state on S3.
    """
    if accept:
        ledger.release_canary(run, tolerated=1.0)
    reason = "resumed; its rejections were accepted by a person" if accept else ""
    state = _change(ledger, blobs, run, ACTIVE, reason)
    hint_pending(ledger, hints, ledger.status(run).queue)
    return state


def cancel(ledger: Ledger, blobs: Blobs, run: str, reason: str) -> str:
    """End the run for good; committed batches stay, kept work is dropped."""
    return _change(ledger, blobs, run, CANCELLED, reason)


def _change(ledger: Ledger, blobs: Blobs, run: str, state: str, reason: str) -> str:
    now = ledger.set_state(run, state, reason)
    if now != state:
        raise DflashqError(
            f"run {run!r} is {now} and stays so: what it committed is on S3. Enqueue the prompts "
            "under another name to go on."
        )
    runs.write_state(blobs, run, state, reason)
    return now
