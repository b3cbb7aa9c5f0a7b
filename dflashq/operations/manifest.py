"""The manifest of a finished run: every committed object, its sha256, its indexes and counts."""

from __future__ import annotations

import json
import logging
from typing import Any

from dflashq.blobs.s3 import Blobs
from dflashq.core import codec, keys
from dflashq.core.errors import BlobMissingError
from dflashq.core.model import canonical_json
from dflashq.ledger import Ledger
from dflashq.operations.containment import contained
from dflashq.operations.verify import Report, verify

log = logging.getLogger(__name__)


def read_manifest(blobs: Blobs, run: str) -> dict[str, Any] | None:
    """The manifest on S3, or None when the run never finished."""
    try:
        row: dict[str, Any] = json.loads(blobs.get(keys.manifest_json(run)).body)
    except BlobMissingError:
        return None
    return row


def write_manifest(blobs: Blobs, run: str) -> Report:
    """Prove the run from S3 and record the proof; nothing is written unless it is clean.

    Blocks for as long as reading every committed object takes. Safe to repeat.
    """
    report = verify(blobs, run)
    if report.clean:
        body = canonical_json(manifest_of(report))
        blobs.put(keys.manifest_json(run), body, {"sha256": codec.sha256(body)})
        log.info("run finished: run=%s accepted=%d manifest written", run, report.accepted)
    else:
        log.error(
            "run finished but not clean: run=%s: %s: see dflashq verify %s",
            *(run, (report.problems + report.missing)[:3], run),
        )
    return report


def manifest_of(report: Report) -> dict[str, Any]:
    """What is recorded of a clean report."""
    return {
        "run": report.run,
        "fingerprint": report.fingerprint,
        "prompts": report.prompts,
        "accepted": report.accepted,
        "rejected": report.rejected,
        "output_tokens": report.output_tokens,
        "objects": report.objects,
    }


def withdraw_manifest(blobs: Blobs, run: str) -> None:
    """A committed object is to be made anew: what was proven holds no longer. Safe to repeat."""
    blobs.delete(keys.manifest_json(run))


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
        if not ledger.closing_lock(run):
            return False
        try:
            if not named.items() <= done.items():
                # A batch was made anew: the proof of the old object would stand against it.
                withdraw_manifest(blobs, run)
            write_manifest(blobs, run)
            if _done(ledger, run) != done:  # a reconcile took one back meanwhile
                withdraw_manifest(blobs, run)
        finally:
            ledger.closed(run)
    closed[run] = seen
    return named != done


def _done(ledger: Ledger, run: str) -> dict[str, str]:
    """The sha256 of every batch's object as the ledger names it."""
    return {batch: ref.sha256 for batch, ref in ledger.done(run).items()}


def _named(blobs: Blobs, run: str) -> dict[str, str]:
    """The sha256 of every batch's object as the manifest names it; nothing without one."""
    manifest = read_manifest(blobs, run)
    return {} if manifest is None else {row["batch"]: row["sha256"] for row in manifest["objects"]}
