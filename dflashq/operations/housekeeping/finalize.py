"""A finished run is closed: proven from S3, and its manifest written."""

from __future__ import annotations

from dflashq.blobs.s3 import Blobs
from dflashq.ledger import Ledger
from dflashq.operations.housekeeping.containment import contained
from dflashq.operations.runs.manifest import read_manifest, withdraw_manifest, write_manifest


def close_finished(ledger: Ledger, blobs: Blobs, closed: dict[str, tuple[int, int]]) -> list[str]:
    """Write the manifest of every run whose last batch was done since it was last looked at.

    `closed` remembers, by run, its done batches and claims then. Returns the runs closed now. What
    goes wrong with one run costs that one alone.
    """
    now = []
    for run in ledger.runs():
        with contained(run, "writing the manifest"):
            if _close(ledger, blobs, run, closed):
                now.append(run)
    return now


def _close(ledger: Ledger, blobs: Blobs, run: str, closed: dict[str, tuple[int, int]]) -> bool:
    status = ledger.status(run)
    finished = status.finished and not status.dead and status.state != "cancelled"
    # A batch that was done again leaves the number of done ones as it was.
    seen = (status.done, status.claims)
    if not finished or closed.get(run) == seen:
        return False
    done, named = _done(ledger, run), _named(blobs, run)
    if named != done:
        if not ledger.finalize_lock(run):
            return False
        try:
            if not named.items() <= done.items():
                # A batch was made anew: the proof of the old object would stand against it.
                withdraw_manifest(blobs, run)
            write_manifest(blobs, run)
            if _done(ledger, run) != done:  # a reconcile took one back meanwhile
                withdraw_manifest(blobs, run)
        finally:
            ledger.release_finalize_lock(run)
    closed[run] = seen
    return named != done


def _done(ledger: Ledger, run: str) -> dict[str, str]:
    """The sha256 of every batch's object as the ledger names it."""
    return {batch: ref.sha256 for batch, ref in ledger.done(run).items()}


def _named(blobs: Blobs, run: str) -> dict[str, str]:
    """The sha256 of every batch's object as the manifest names it; nothing without one."""
    manifest = read_manifest(blobs, run)
    return {} if manifest is None else {row["batch"]: row["sha256"] for row in manifest["objects"]}
