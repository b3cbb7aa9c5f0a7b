"""A finished run is proven from S3, and its manifest written."""

from __future__ import annotations

from dflashq.blobs.s3 import Blobs
from dflashq.core.states import RunState
from dflashq.ledger import Ledger
from dflashq.operations.housekeeping.containment import contained
from dflashq.operations.runs.listing import status_if_known
from dflashq.operations.runs.manifest import read_manifest, withdraw_manifest, write_manifest


def close_finished(ledger: Ledger, blobs: Blobs, closed: dict[str, tuple[int, int]]) -> list[str]:
    """Write the manifest of every run that has finished since the last call; returns those runs.

    `closed` is the caller's memory between two calls: by run, the done batches and the claims that
    its manifest covers. A failure of one run is logged and the others go on. Blocks on Redis and S3
    for as long as reading every object of such a run takes; safe to repeat. LedgerUnreachableError.
    """
    written = []
    for run in ledger.runs():
        with contained(run, "writing the manifest"):
            if _finalize(ledger, blobs, run, closed):
                written.append(run)
    return written


def _finalize(ledger: Ledger, blobs: Blobs, run: str, closed: dict[str, tuple[int, int]]) -> bool:
    status = status_if_known(ledger, run)
    if status is None or not status.finished or status.dead or status.state == RunState.CANCELLED:
        return False
    # The claims count too: a batch that was done again leaves the number of done ones as it was.
    progress = (status.done, status.claims)
    if closed.get(run) == progress:
        return False
    done, named = _done(ledger, run), _named(blobs, run)
    if named != done:
        if not ledger.finalize_lock(run):
            return False
        try:
            if not named.items() <= done.items():
                # A batch was done again: the manifest names an object that is gone.
                withdraw_manifest(blobs, run)
            write_manifest(blobs, run)
            if _done(ledger, run) != done:  # a reconcile took a batch back meanwhile
                withdraw_manifest(blobs, run)
        finally:
            ledger.release_finalize_lock(run)
    closed[run] = progress
    return named != done


def _done(ledger: Ledger, run: str) -> dict[str, str]:
    """The sha256 of every batch's object as the ledger names it."""
    return {batch: ref.sha256 for batch, ref in ledger.done(run).items()}


def _named(blobs: Blobs, run: str) -> dict[str, str]:
    """The sha256 of every batch's object as the manifest names it; empty without a manifest."""
    manifest = read_manifest(blobs, run)
    return {} if manifest is None else {row["batch"]: row["sha256"] for row in manifest["objects"]}
