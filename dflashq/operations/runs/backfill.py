"""Run again what failed: dead batches under their own name, rejected prompts as a revision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from dflashq.blobs import runs
from dflashq.blobs.commits import read_commit
from dflashq.blobs.s3 import Blobs
from dflashq.core import codec, keys
from dflashq.core.errors import BlobMissingError, DflashqError
from dflashq.core.model import BatchRecord, Prompt, RunRecord
from dflashq.core.states import RunState
from dflashq.ledger import Hints, Ledger
from dflashq.ledger.models import RunStatus
from dflashq.operations.runs.hinting import hint_pending


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """What was put back to work.

    `revived` names batches, `revisions` maps each new revision to its number of prompts. While the
    run's `state` is paused, nothing of it begins.
    """

    revived: list[str] = field(default_factory=list)
    revisions: dict[str, int] = field(default_factory=dict)
    state: RunState = RunState.ACTIVE

    @property
    def prompts(self) -> int:
        """Rejected prompts that are run again."""
        return sum(self.revisions.values())


def revive(ledger: Ledger, hints: Hints, run: str) -> BackfillResult:
    """Give dead batches their attempts back, and hint them.

    Blocks on Redis; safe to repeat. DflashqError for a cancelled or unknown run.
    """
    status = _status_unless_cancelled(ledger, run)
    revived = ledger.revive(run, "revived by backfill")
    hint_pending(ledger, hints, status.queue)
    return BackfillResult(revived=revived, state=status.state)


def _status_unless_cancelled(ledger: Ledger, run: str) -> RunStatus:
    status = ledger.status(run)
    if status.state == RunState.CANCELLED:
        raise DflashqError(
            f"run {run!r} is cancelled for good: nothing of it is run again. What it committed is "
            "on S3; enqueue the prompts under another name."
        )
    return status


def rerun_rejected(
    ledger: Ledger, blobs: Blobs, hints: Hints, run: str, reason: str | None
) -> BackfillResult:
    """Run rejected prompts again, those with `reason` or all: one revision for each batch.

    Prompts of a revision that is not committed yet are left out. So a second call changes nothing,
    and finishes what an interrupted first one began. Blocks on Redis and S3: reads every committed
    batch. DflashqError for a cancelled or unknown run, ConflictError for a damaged object.
    """
    record = runs.read_run(blobs, run)
    status = _status_unless_cancelled(ledger, run)
    # S3 may hold a revision that an interrupted call, or a lost Redis, left out of the ledger.
    ledger.add(run, [revision.batch.name for revision in runs.revisions(blobs, run)])
    prompts = {}
    for number, batch in enumerate(record.batches):
        to_rerun = _next_revision(blobs, record, batch, number, reason)
        if to_rerun is None:
            continue
        name, reasons = to_rerun
        revision = _upload_prompts(blobs, record, batch, name, reasons)
        runs.write_revision(blobs, run, revision)
        ledger.add(run, [name])
        prompts[name] = len(reasons)
    # A run is finished when as many batches are done as it has. So revisions must not stand in for
    # batches that an enqueue left out.
    ledger.add(run, [batch.name for batch in record.batches])
    hint_pending(ledger, hints, status.queue)
    return BackfillResult(revisions=prompts, state=status.state)


def _next_revision(
    blobs: Blobs, record: RunRecord, batch: BatchRecord, number: int, reason: str | None
) -> tuple[str, dict[int, str]] | None:
    """The name of the next revision, and the reasons of the prompts that it runs, by index.

    None when it would run none.
    """
    indexes = set(range(batch.first, batch.last + 1))
    try:
        rejected = dict(
            read_commit(blobs, record.name, batch.name, record.fingerprint, indexes).reasons
        )
    except BlobMissingError:
        return None
    following = 1
    for revision in _revisions(blobs, record, number):
        following += 1
        rerun = {prompt.index for prompt in runs.read_prompts(blobs, revision.batch)}
        rejected = {i: why for i, why in rejected.items() if i not in rerun}
        try:
            commit = read_commit(blobs, record.name, revision.batch.name, record.fingerprint, rerun)
        except BlobMissingError:
            continue
        rejected |= commit.reasons
    wanted = {i: why for i, why in rejected.items() if reason in (None, why)}
    return (keys.batch_name(number, following), wanted) if wanted else None


def _revisions(blobs: Blobs, record: RunRecord, number: int) -> Iterator[runs.Revision]:
    following = 1
    while True:
        try:
            yield runs.read_revision(blobs, record.name, keys.batch_name(number, following))
        except BlobMissingError:
            return
        following += 1


def _upload_prompts(
    blobs: Blobs, record: RunRecord, batch: BatchRecord, name: str, reasons: dict[int, str]
) -> runs.Revision:
    """Upload the prompts of a revision; its record names them."""
    prompts: list[Prompt] = [p for p in runs.read_prompts(blobs, batch) if p.index in reasons]
    body = codec.encode_rows(prompt.to_json() for prompt in prompts)
    digest = codec.sha256(body)
    key = keys.prompts_object(record.name, name, digest)
    blobs.put_absent(key, body, {"sha256": digest})
    indexes = [prompt.index for prompt in prompts]
    rerun = BatchRecord(name, key, digest, len(prompts), min(indexes), max(indexes))
    return runs.Revision(rerun, dict(Counter(reasons.values())))
