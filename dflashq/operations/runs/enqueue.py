"""Enqueue: upload the batches, write run.json, then add the batches to the ledger and hint them.

It may be killed at any point and done again: prompt objects are named by their content, `run.json`
is put only if absent, and what the ledger lacks is added.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from dflashq import __version__
from dflashq.blobs import runs
from dflashq.blobs.s3 import Blobs
from dflashq.core import keys
from dflashq.core.errors import ConflictError, SpecMismatchError, UsageError
from dflashq.core.model import BatchRecord, RunRecord, RunSpec, fingerprint, spec_differences
from dflashq.core.states import RunState
from dflashq.ledger import Hints, Ledger
from dflashq.operations.runs.hinting import hint_pending
from dflashq.prompts.batches import PreparedBatch, PreparedBatches

log = logging.getLogger(__name__)

UPLOADS = 8  # at a time
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class EnqueueResult:
    """What an enqueue did. `continued`: the run was on S3 already.

    `added` counts the batches that are new to the ledger, `hinted` the hints. A run whose `state`
    is paused or cancelled is not hinted.
    """

    record: RunRecord
    continued: bool
    added: int
    hinted: int
    state: RunState = RunState.ACTIVE


def check_name(run: str) -> None:
    """UsageError for a name that no run can have."""
    if not keys.valid_run_name(run):
        raise UsageError(
            f"{run!r} is no run name: letters, digits, dot, dash and underscore, at most 100, "
            "beginning with a letter or a digit"
        )


def run_record(run: str, spec: RunSpec, prepared: PreparedBatches, created: datetime) -> RunRecord:
    """The record that an enqueue of these prompts writes; `created` is a time with its zone."""
    return RunRecord(
        name=run,
        spec=spec,
        prompts=prepared.prompts,
        prompts_sha256=prepared.prompts_sha256,
        batches=[_record(run, batch) for batch in prepared.batches],
        fingerprint=fingerprint(spec, prepared.prompts_sha256),
        created=created.isoformat(timespec="seconds"),
        version=__version__,
    )


def _record(run: str, batch: PreparedBatch) -> BatchRecord:
    key = keys.prompts_object(run, batch.name, batch.sha256)
    return BatchRecord(batch.name, key, batch.sha256, batch.prompts, batch.first, batch.last)


def canary_of(record: RunRecord) -> str:
    """The name of the batch that the others wait for; empty when the run has no canary."""
    return record.batches[0].name if record.spec.guard.canary else ""


def refuse_other_spec(existing: RunRecord, new: RunRecord) -> None:
    """SpecMismatchError when the run that exists under this name is another one."""
    if existing.fingerprint != new.fingerprint:
        raise SpecMismatchError(
            new.name,
            spec_differences(existing.spec, existing.prompts_sha256, new.spec, new.prompts_sha256),
        )


def existing_run(blobs: Blobs, run: str) -> RunRecord | None:
    """The record of the run of this name on S3, None when there is none. Blocks. BlobError."""
    if blobs.head(keys.run_json(run)) is None:
        return None
    return runs.read_run(blobs, run)


def enqueue(
    ledger: Ledger,
    blobs: Blobs,
    hints: Hints,
    new: RunRecord,
    prepared: PreparedBatches,
    progress: Progress,
) -> EnqueueResult:
    """Upload, record and hint a run whose batches are `prepared`.

    Nothing is hinted before everything is uploaded. `progress(what, done, of)` is called along the
    way. Blocks on S3 and Redis; safe to repeat: the same call again continues the run.
    SpecMismatchError when the name is another run's, ConflictError when the ledger or a prompt
    object contradicts S3's record.
    """
    ledger.check()
    blobs.check_conditional_put("probes/")
    record = existing_run(blobs, new.name)
    continued = record is not None
    if record is None:
        _upload(blobs, new, prepared, progress)
        written = runs.write_run(blobs, new)
        record = new if written else runs.read_run(blobs, new.name)
    refuse_other_spec(record, new)
    if continued:
        _restore_prompts(blobs, record, prepared, progress)
    return _fill(ledger, blobs, hints, record, continued, progress)


def _fill(
    ledger: Ledger,
    blobs: Blobs,
    hints: Hints,
    record: RunRecord,
    continued: bool,
    progress: Progress,
) -> EnqueueResult:
    """Make the run known to the ledger and hint its batches."""
    queue = record.spec.queue
    forgotten = ledger.state(record.name) == RunState.UNKNOWN
    known = ledger.register(
        run=record.name,
        fingerprint=record.fingerprint,
        queue=queue,
        prompts=record.prompts,
        batches=len(record.batches),
        canary=canary_of(record),
    )
    if known != record.fingerprint:
        raise ConflictError(
            f"the ledger knows another run named {record.name!r} (fingerprint {known[:12]}…) than "
            f"S3 does ({record.fingerprint[:12]}…): was the bucket changed? Use another --run "
            "name, or the bucket that the ledger's run was enqueued to."
        )
    if continued and forgotten:
        _restore_state(ledger, blobs, record.name)
    names = [batch.name for batch in record.batches]
    if continued:
        names += [revision.batch.name for revision in runs.revisions(blobs, record.name)]
    added = ledger.add(record.name, names)
    progress("hinting", 0, len(names))
    hinted = hint_pending(ledger, hints, queue)
    progress("hinting", len(names), len(names))
    log.info("enqueued: run=%s batches=%d new=%d", record.name, len(names), added)
    return EnqueueResult(record, continued, added, hinted, ledger.state(record.name))


def _restore_state(ledger: Ledger, blobs: Blobs, run: str) -> None:
    """After a loss of Redis, S3 still has it that the run is paused or cancelled."""
    mirrored = runs.read_state(blobs, run)
    if mirrored is not None and mirrored[0] != RunState.ACTIVE:
        ledger.set_state(run, *mirrored)


def _upload(blobs: Blobs, new: RunRecord, prepared: PreparedBatches, progress: Progress) -> None:
    """Put every prompt object, several at a time; the first failure or Ctrl-C cancels the rest."""
    pairs = list(zip(new.batches, prepared.batches, strict=True))
    with ThreadPoolExecutor(UPLOADS) as pool:
        uploads = [pool.submit(_put, blobs, record, batch) for record, batch in pairs]
        try:
            for done, upload in enumerate(uploads, 1):
                upload.result()
                progress("uploading", done, len(pairs))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _put(blobs: Blobs, record: BatchRecord, batch: PreparedBatch) -> None:
    blobs.put_absent(record.key, batch.path.read_bytes(), {"sha256": record.sha256})


def _restore_prompts(
    blobs: Blobs, record: RunRecord, prepared: PreparedBatches, progress: Progress
) -> None:
    """Put the prompt objects again that the run's record names and the bucket has lost."""
    present = set(blobs.list(f"{keys.run_prefix(record.name)}prompts/"))
    by_name = {batch.name: batch for batch in prepared.batches}
    lost = [batch for batch in record.batches if batch.key not in present]
    for done, batch in enumerate(lost, 1):
        if by_name[batch.name].sha256 != batch.sha256:
            raise ConflictError(
                f"{batch.key} is gone from S3 and cannot be made again byte for byte: put it back "
                "from a backup, or enqueue under another --run name."
            )
        _put(blobs, batch, by_name[batch.name])
        progress("restoring", done, len(lost))
