"""The current samples of a run, from S3: revisions in the place of the rejected rows they ran."""

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
    """What of a run is committed now; `digest` names exactly these objects.

    `missing` are the batches and revisions that are not committed yet.
    """

    record: RunRecord
    batches: tuple[BatchCommits, ...]
    missing: tuple[str, ...] = field(default=())

    @property
    def digest(self) -> str:
        """sha256 (hex) over the sha256 of every committed object."""
        rows = [[ref.key, ref.sha256, ref.rejected_sha256] for b in self.batches for ref in b.refs]
        return hashlib.sha256(canonical_json(rows)).hexdigest()


def snapshot(blobs: Blobs, run: str) -> CommittedRun:
    """Look at every batch's commit once (a HEAD each); UnknownRunError for an unknown run."""
    record = runs.read_run(blobs, run)
    again: dict[int, list[str]] = {}
    for revision in runs.revisions(blobs, run):
        number, _ = keys.parse_batch(revision.batch.name)
        again.setdefault(number, []).append(revision.batch.name)
    found, missing = [], []
    for number, batch in enumerate(record.batches):
        refs = []
        for name in (batch.name, *again.get(number, [])):
            ref = commits.read_reference(blobs, run, name, record.fingerprint)
            if ref is None:
                missing.append(name)
            else:
                refs.append(ref)
        found.append(BatchCommits(batch, tuple(refs)))
    return CommittedRun(record, tuple(found), tuple(missing))


def samples(
    blobs: Blobs, shot: CommittedRun, *, rejected: bool = False, progress: Progress | None = None
) -> Iterator[Sample]:
    """The samples of a snapshot, in index order; with `rejected` also those (they have `reason`).

    Holds the objects of one batch. Blocks on S3. ConflictError when an object is damaged or an
    index comes twice.
    `progress(done, of)` is called after every batch.
    """
    for number, batch in enumerate(shot.batches, 1):
        yield from batch_samples(blobs, batch, rejected=rejected)
        if progress is not None:
            progress(number, len(shot.batches))


def batch_samples(blobs: Blobs, batch: BatchCommits, *, rejected: bool = False) -> Iterator[Sample]:
    """The samples of one batch, in index order, revisions over what they supersede.

    Decodes a sample as it is asked for. ConflictError when an object is damaged or not in order.
    """
    streams = [_ranked(ACCEPTED, commits.accepted_rows(blobs, ref)) for ref in batch.refs]
    if rejected:
        streams += [_ranked(REJECTED, commits.rejected_rows(blobs, ref)) for ref in batch.refs]
    before = -1
    merged = heapq.merge(*streams, key=lambda pair: pair[1]["index"])
    for index, group in itertools.groupby(merged, key=lambda pair: pair[1]["index"]):
        found = list(group)
        accepted = sum(rank == ACCEPTED for rank, _ in found)
        if index <= before or accepted > 1:
            raise ConflictError(
                f"{batch.batch.name}: index {index} was accepted twice, or its rows are not in "
                "order. `dflashq verify` says more; nothing was written."
            )
        before = index
        # Of several rejected rows the last revision's stands: the streams are merged in order.
        yield max(enumerate(found), key=lambda one: (one[1][0], one[0]))[1][1]


def _ranked(rank: int, rows: Iterator[Sample]) -> Iterator[tuple[int, Sample]]:
    for row in rows:
        yield rank, row
