"""The manifest of a finished run: every committed object, its sha256, its indexes and counts."""

from __future__ import annotations

import json
import logging
from typing import Any

from dflashq.blobs.s3 import Blobs
from dflashq.core import codec, keys
from dflashq.core.errors import BlobMissingError
from dflashq.core.model import canonical_json
from dflashq.operations.results.verify import VerifyReport, verify

log = logging.getLogger(__name__)


def read_manifest(blobs: Blobs, run: str) -> dict[str, Any] | None:
    """The manifest on S3, None when absent. Blocks. BlobError; ValueError for no JSON."""
    try:
        row: dict[str, Any] = json.loads(blobs.get(keys.manifest_json(run)).body)
    except BlobMissingError:
        return None
    return row


def write_manifest(blobs: Blobs, run: str) -> VerifyReport:
    """Verify the run from S3 and write its manifest if it is clean; a problem is logged.

    Blocks for as long as reading every committed object takes. Safe to repeat. UnknownRunError,
    BlobError.
    """
    report = verify(blobs, run)
    if report.clean:
        body = canonical_json(manifest_of(report))
        blobs.put(keys.manifest_json(run), body, {"sha256": codec.sha256(body)})
        log.info("run finished: run=%s accepted=%d manifest written", run, report.accepted)
    else:
        log.error(
            "run finished but not clean: run=%s: %s: see dflashq verify %s",
            run,
            (report.problems + report.missing)[:3],
            run,
        )
    return report


def manifest_of(report: VerifyReport) -> dict[str, Any]:
    """The manifest that a clean report becomes."""
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
    """Delete the manifest, since an object that it names is to be made again.

    Blocks on S3; safe to repeat. BlobError.
    """
    blobs.delete(keys.manifest_json(run))
