"""Asking for a stage behind generate, run by run."""

from __future__ import annotations

from dflashq.blobs import runs
from dflashq.blobs.s3 import Blobs
from dflashq.core.errors import ConflictError
from dflashq.core.stage_spec import StageSpec
from dflashq.ledger import Ledger


def request_stage(ledger: Ledger, blobs: Blobs, run: str, spec: StageSpec) -> int:
    """Have every committed batch of a run go through a stage, those that come later too.

    The sweep adds what its upstream commits from now on. Returns how many batches are new. Blocks
    on S3 and Redis; safe to repeat. UnknownRunError for an unknown run, ConflictError when the
    ledger knows another run under this name.
    """
    record = runs.read_run(blobs, run)
    on_record = ledger.register(
        run,
        record.fingerprint,
        spec.queue or record.spec.queue,
        record.prompts,
        len(record.batches),
        stage=spec.name,
    )
    if on_record != record.fingerprint:
        raise ConflictError(
            f"stage {spec.name} of run {run!r} is known to the ledger with fingerprint "
            f"{on_record[:12]}…, S3 says {record.fingerprint[:12]}…: nothing was changed"
        )
    return ledger.add_ready(run, spec)
