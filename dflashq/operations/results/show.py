"""One sample of a run, whole, with its origin."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dflashq.blobs.s3 import Blobs
from dflashq.core import keys
from dflashq.core.errors import BlobMissingError, DflashqError
from dflashq.core.model import RunRecord
from dflashq.operations.results.samples import BatchCommits, Sample, batch_samples, snapshot


@dataclass(frozen=True, slots=True)
class SampleDetails:
    """A sample with its run's spec, the batch that holds it, and its engine records by id.

    An engine whose record is not on S3 is left out.
    """

    sample: Sample
    batch: str
    spec: dict[str, Any]
    engines: dict[str, dict[str, Any]]


def show(blobs: Blobs, run: str, index: int) -> SampleDetails:
    """The current sample of a prompt, accepted or rejected. Blocks on S3: reads one batch.

    DflashqError when the run has no such index, when its batch is not committed yet, or when its
    row was lost; UnknownRunError for an unknown run, ConflictError for a damaged object.
    """
    committed = snapshot(blobs, run)
    home = next((b for b in committed.batches if b.batch.first <= index <= b.batch.last), None)
    if home is None:
        last = committed.record.prompts - 1
        raise DflashqError(f"run {run!r} has no index {index}: its prompts are 0 to {last}.")
    if not home.refs:
        raise DflashqError(
            f"index {index} is in {home.batch.name}, which is not committed yet: "
            f"`dflashq status {run}` shows its progress."
        )
    for sample in batch_samples(blobs, home, rejected=True):
        if sample["index"] == index:
            return _details(blobs, committed.record, home, sample)
    raise DflashqError(
        f"index {index} of run {run!r} is rejected as unrecorded: its row was lost before it was "
        f"stored. `dflashq backfill {run} --rejected unrecorded` runs it again."
    )


def _details(blobs: Blobs, record: RunRecord, home: BatchCommits, sample: Sample) -> SampleDetails:
    engines: dict[str, dict[str, Any]] = {}
    for generation in sample.get("generations", ()):
        engine = generation["engine"]
        if engine and engine not in engines:
            try:
                body = blobs.get(keys.engine_object(record.name, engine)).body
            except BlobMissingError:
                continue
            engines[engine] = json.loads(body)
    return SampleDetails(sample, home.batch.name, record.spec.model_dump(mode="json"), engines)
