"""Enqueue: read everything, upload the batches, write run.json last, then fill the outbox.

Killed anywhere it can be done again: prompt objects are content-addressed, `run.json` is put only
if absent, and what the ledger lacks is added.
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
from dflashq.ledger import Hints, Ledger
from dflashq.operations.runs.hinting import hint_pending
from dflashq.prompts.batches import PreparedBatch, PreparedBatches

log = logging.getLogger(__name__)

UPLOADS = 8
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class EnqueueResult:
    """What an enqueue did: the run's record, whether it was there, batches and hints added.

    `state` is the run's: a paused or cancelled one is not hinted.
    """

    record: RunRecord
    continued: bool
    added: int
    hinted: int
    state: str = "active"


def check_name(run: str) -> None:
    """UsageError for a name that cannot be a run's."""
    if not keys.valid_run_name(run):
        raise UsageError(
            f"{run!r} is no run name: letters, digits, dot, dash and underscore, at most 100, "
            "beginning with a letter or a digit"
        )


def run_record(run: str, spec: RunSpec, prepared: PreparedBatches, created: datetime) -> RunRecord:
    """The record that this enqueue would write."""
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
    """The batch that the others wait for; empty when the run has no canary."""
    return record.batches[0].name if record.spec.guard.canary else ""


def refuse_other_spec(on_record: RunRecord, asked: RunRecord) -> None:
    """SpecMismatchError when the name is taken by a run that is not this one."""
    if on_record.fingerprint != asked.fingerprint:
        raise SpecMismatchError(
            asked.name,
            spec_differences(
                on_record.spec, on_record.prompts_sha256, asked.spec, asked.prompts_sha256
            ),
        )


def existing(blobs: Blobs, run: str) -> RunRecord | None:
    """The run of this name on S3, if any."""
    if blobs.head(keys.run_json(run)) is None:
        return None
    return runs.read_run(blobs, run)


def enqueue(
    ledger: Ledger,
    blobs: Blobs,
    hints: Hints,
    asked: RunRecord,
    prepared: PreparedBatches,
    progress: Progress,
) -> EnqueueResult:
    """Upload, record and hint a spooled run; the same again continues it.

    Blocks. SpecMismatchError when the name is another run's; `progress(what, done, of)` is called
    along the way. Nothing is hinted before everything is uploaded.
    """
    ledger.check()
    blobs.check_conditional_put("probes/")
    record = existing(blobs, asked.name)
    continued = record is not None
    if record is None:
        _upload(blobs, asked, prepared, progress)
        written = runs.write_run(blobs, asked)
        record = asked if written else runs.read_run(blobs, asked.name)
    refuse_other_spec(record, asked)
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
    queue, forgotten = record.spec.queue, ledger.state(record.name) == "unknown"
    known = ledger.register(
        *(record.name, record.fingerprint, queue, record.prompts, len(record.batches)),
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
    """A ledger that lost its memory learns from S3 that the run is paused or cancelled."""
    mirrored = runs.read_state(blobs, run)
    if mirrored is not None and mirrored[0] != "active":
        ledger.set_state(run, *mirrored)


def _upload(blobs: Blobs, asked: RunRecord, prepared: PreparedBatches, progress: Progress) -> None:
    """Every prompt object, several at a time; the first failure or Ctrl-C ends it."""
    pairs = list(zip(asked.batches, prepared.batches, strict=True))
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
    """Prompt objects that a run on record lacks (a cleaned bucket) are put again."""
    held = set(blobs.list(f"{keys.run_prefix(record.name)}prompts/"))
    spooled = {batch.name: batch for batch in prepared.batches}
    lost = [batch for batch in record.batches if batch.key not in held]
    for done, batch in enumerate(lost, 1):
        if spooled[batch.name].sha256 != batch.sha256:
            raise ConflictError(
                f"{batch.key} is gone from S3 and cannot be made again byte for byte: put it back "
                "from a backup, or enqueue under another --run name."
            )
        _put(blobs, batch, spooled[batch.name])
        progress("restoring", done, len(lost))
