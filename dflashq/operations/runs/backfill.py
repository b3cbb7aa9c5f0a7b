"""Run again what failed: dead batches under their own number, rejected prompts as a revision."""

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
from dflashq.ledger import Hints, Ledger
from dflashq.ledger.models import RunStatus
from dflashq.operations.runs.hinting import hint_pending


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """What was put back to work; `state` is the run's: while it is paused, nothing of it begins."""

    revived: list[str] = field(default_factory=list)
    revisions: dict[str, int] = field(default_factory=dict)
    state: str = "active"

    @property
    def prompts(self) -> int:
        """Rejected prompts that are run again."""
        return sum(self.revisions.values())


def revive(ledger: Ledger, hints: Hints, run: str) -> BackfillResult:
    """Dead batches get their attempts back. DflashqError for a cancelled run. Safe to repeat."""
    status = _going(ledger, run)
    revived = ledger.revive(run, "revived by backfill")
    hint_pending(ledger, hints, status.queue)
    return BackfillResult(revived=revived, state=status.state)


def _going(ledger: Ledger, run: str) -> RunStatus:
    status = ledger.status(run)
    if status.state == "cancelled":
        raise DflashqError(
            f"run {run!r} is cancelled for good: nothing of it is run again. What it committed is "
            "on S3; enqueue the prompts under another name."
        )
    return status


def rerun_rejected(
    ledger: Ledger, blobs: Blobs, hints: Hints, run: str, reason: str | None
) -> BackfillResult:
    """Rejected prompts (of one reason, or all) again, as one revision a batch.

    Prompts of a revision that is not committed yet are on their way already: asked twice, it
    changes nothing, and one that was killed half-way is finished. Blocks; reads every committed
    batch. DflashqError for a cancelled run.
    """
    record = runs.read_run(blobs, run)
    status = _going(ledger, run)
    # A revision may be on record that the ledger never heard of, or has forgotten.
    ledger.add(run, [revision.batch.name for revision in runs.revisions(blobs, run)])
    made = {}
    for number, batch in enumerate(record.batches):
        chosen = _chosen(blobs, record, batch, number, reason)
        if chosen is None:
            continue
        name, reasons = chosen
        revision = _revision(blobs, record, batch, name, reasons)
        runs.write_revision(blobs, run, revision)
        ledger.add(run, [name])
        made[name] = len(reasons)
    # With a revision for each batch that an enqueue left out, the run would count as finished.
    ledger.add(run, [batch.name for batch in record.batches])
    hint_pending(ledger, hints, status.queue)
    return BackfillResult(revisions=made, state=status.state)


def _chosen(
    blobs: Blobs, record: RunRecord, batch: BatchRecord, number: int, reason: str | None
) -> tuple[str, dict[int, str]] | None:
    """The next revision's name and the rejected indexes it runs again; None when there are none."""
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
        again = {prompt.index for prompt in runs.read_prompts(blobs, revision.batch)}
        rejected = {i: why for i, why in rejected.items() if i not in again}
        try:
            commit = read_commit(blobs, record.name, revision.batch.name, record.fingerprint, again)
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


def _revision(
    blobs: Blobs, record: RunRecord, batch: BatchRecord, name: str, reasons: dict[int, str]
) -> runs.Revision:
    """Upload the prompts of a revision; its record names them."""
    prompts: list[Prompt] = [p for p in runs.read_prompts(blobs, batch) if p.index in reasons]
    body = codec.encode_rows(prompt.to_json() for prompt in prompts)
    digest = codec.sha256(body)
    key = keys.prompts_object(record.name, name, digest)
    blobs.put_absent(key, body, {"sha256": digest})
    indexes = [prompt.index for prompt in prompts]
    made = BatchRecord(name, key, digest, len(prompts), min(indexes), max(indexes))
    return runs.Revision(made, dict(Counter(reasons.values())))
