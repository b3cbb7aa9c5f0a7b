"""The current samples of a run, from S3; a revision takes the place of the rows it ran again."""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dflashq.blobs import commits, runs
from dflashq.blobs.s3 import Blobs
from dflashq.core import keys
from dflashq.core.errors import ConflictError
from dflashq.core.model import BatchRecord, ObjectRef, RunRecord, canonical_json

Progress = Callable[[int, int], None]
Sample = dict[str, Any]
REJECTED, ACCEPTED = 1, 2


@dataclass(frozen=True, slots=True)
class BatchCommits:
    """The commits of one batch and of its revisions, in order."""

    batch: BatchRecord
    refs: tuple[ObjectRef, ...]


@dataclass(frozen=True, slots=True)
class CommittedRun:
    """The commits of a run at one moment.

    `missing` names the batches and revisions that were not committed then.
    """

    record: RunRecord
    batches: tuple[BatchCommits, ...]
    missing: tuple[str, ...] = field(default=())

    @property
    def digest(self) -> str:
        """sha256 (hex) over the names and the hashes of exactly these objects."""
        rows = [[ref.key, ref.sha256, ref.rejected_sha256] for b in self.batches for ref in b.refs]
        return hashlib.sha256(canonical_json(rows)).hexdigest()


def snapshot(blobs: Blobs, run: str) -> CommittedRun:
    """The commits of a run as they are now; costs a HEAD for each batch.

    Blocks on S3. UnknownRunError for an unknown run, ConflictError for a commit of another run.
    """
    record = runs.read_run(blobs, run)
    revisions: dict[int, list[str]] = {}
    for revision in runs.revisions(blobs, run):
        number, _ = keys.parse_batch(revision.batch.name)
        revisions.setdefault(number, []).append(revision.batch.name)
    batches, missing = [], []
    for number, batch in enumerate(record.batches):
        refs = []
        for name in (batch.name, *revisions.get(number, [])):
            ref = commits.read_reference(blobs, run, name, record.fingerprint)
            if ref is None:
                missing.append(name)
            else:
                refs.append(ref)
        batches.append(BatchCommits(batch, tuple(refs)))
    return CommittedRun(record, tuple(batches), tuple(missing))


def samples(
    blobs: Blobs,
    committed: CommittedRun,
    *,
    rejected: bool = False,
    progress: Progress | None = None,
) -> Iterator[Sample]:
    """The samples of a snapshot, in index order; with `rejected` the rejected ones too.

    Only rejected samples have a `reason`. `progress(done, of)` is called after every batch. Blocks
    on S3; holds the objects of one batch. ConflictError when an object is damaged or an index was
    accepted twice.
    """
    for number, batch in enumerate(committed.batches, 1):
        yield from batch_samples(blobs, batch, rejected=rejected)
        if progress is not None:
            progress(number, len(committed.batches))


def batch_samples(blobs: Blobs, batch: BatchCommits, *, rejected: bool = False) -> Iterator[Sample]:
    """The samples of one batch, in index order; a revision's in place of those it ran again.

    Each is decoded when the caller asks for it. Blocks on S3. ConflictError when an object is
    damaged or not in order, or an index was accepted twice.
    """
    streams = [_ranked(ACCEPTED, commits.accepted_rows(blobs, ref)) for ref in batch.refs]
    if rejected:
        streams += [_ranked(REJECTED, commits.rejected_rows(blobs, ref)) for ref in batch.refs]
    before = -1
    merged = heapq.merge(*streams, key=lambda pair: pair[1]["index"])
    for index, group in itertools.groupby(merged, key=lambda pair: pair[1]["index"]):
        ranked = list(group)
        accepted = sum(rank == ACCEPTED for rank, _ in ranked)
        if index <= before or accepted > 1:
            raise ConflictError(
                f"{batch.batch.name}: index {index} was accepted twice, or its rows are not in "
                "order. `dflashq verify` says more; nothing was written."
            )
        before = index
        # An accepted row stands; of several rejected ones the last, since the streams are merged in
        # the order of the revisions.
        _, (_, sample) = max(enumerate(ranked), key=lambda item: (item[1][0], item[0]))
        yield sample


def _ranked(rank: int, rows: Iterator[Sample]) -> Iterator[tuple[int, Sample]]:
    for row in rows:
        yield rank, row
