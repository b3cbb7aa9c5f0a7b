"""The records of a run on S3: run.json, its prompts objects, its revisions, its state."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dflashq.blobs.s3 import Blobs
from dflashq.core import codec, keys
from dflashq.core.errors import BlobMissingError, ConflictError, UnknownRunError
from dflashq.core.model import BatchRecord, Prompt, RunRecord, canonical_json


@dataclass(frozen=True, slots=True)
class Revision:
    """A batch of rejected prompts that are run again; `supersedes` counts them by reason."""

    batch: BatchRecord
    supersedes: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return {"batch": self.batch.to_json(), "supersedes": self.supersedes}


def read_run(blobs: Blobs, run: str) -> RunRecord:
    """`run.json`; UnknownRunError when there is none, NewerFormatError. Blocks on S3."""
    try:
        body = blobs.get(keys.run_json(run)).body
    except BlobMissingError:
        raise UnknownRunError(
            f"no run named {run!r} on S3 ({blobs!r}): `dflashq status` lists the runs"
        ) from None
    return RunRecord.from_json(json.loads(body))


def write_run(blobs: Blobs, record: RunRecord) -> bool:
    """Put `run.json` if absent; False when one exists: read it and compare. Blocks on S3."""
    body = canonical_json(record.to_json())
    return blobs.put_absent(keys.run_json(record.name), body, {"sha256": codec.sha256(body)})


def read_revision(blobs: Blobs, run: str, batch: str) -> Revision:
    """The record of a revision batch; BlobMissingError when there is none."""
    row = json.loads(blobs.get(keys.revision_json(run, batch)).body)
    return Revision(BatchRecord.from_json(row["batch"]), row["supersedes"])


def write_revision(blobs: Blobs, run: str, revision: Revision) -> bool:
    """Put a revision's record if absent; False when one exists. Blocks on S3."""
    body = canonical_json(revision.to_json())
    key = keys.revision_json(run, revision.batch.name)
    return blobs.put_absent(key, body, {"sha256": codec.sha256(body)})


def revisions(blobs: Blobs, run: str) -> list[Revision]:
    """All revisions of a run, by batch, then by number. Blocks on S3, once for each."""
    names = [
        key.rpartition("/")[2].removesuffix(".json")
        for key in blobs.list(keys.revisions_prefix(run))
    ]
    return [read_revision(blobs, run, name) for name in sorted(names, key=keys.parse_batch)]


def batch_record(blobs: Blobs, record: RunRecord, batch: str) -> BatchRecord:
    """The record of a batch or revision, which names its prompts object.

    UnknownRunError for a batch number that the run does not have, BlobMissingError for a revision.
    """
    number, revision = keys.parse_batch(batch)
    if revision:
        return read_revision(blobs, record.name, batch).batch
    if number >= len(record.batches):
        raise UnknownRunError(
            f"run {record.name!r} has {len(record.batches)} batches; {batch} is not one of them"
        )
    return record.batches[number]


def read_prompts(blobs: Blobs, record: BatchRecord) -> list[Prompt]:
    """The prompts of a batch, in order; ConflictError when the object is not the recorded one.

    BlobMissingError when it is gone. Blocks on S3.
    """
    body = blobs.get(record.key).body
    if codec.sha256(body) != record.sha256:
        raise ConflictError(
            f"{record.key} is damaged: its sha256 is {codec.sha256(body)[:12]}…, the record says "
            f"{record.sha256[:12]}…. Delete it and enqueue the same files again: that writes it "
            "anew."
        )
    return [Prompt.from_json(row) for row in codec.decode_rows(body)]


def write_state(blobs: Blobs, run: str, state: str, reason: str) -> None:
    """Mirror the state of a run (active, paused, cancelled), so that it outlives a lost Redis."""
    blobs.put(keys.state_json(run), canonical_json({"state": state, "reason": reason}))


def read_state(blobs: Blobs, run: str) -> tuple[str, str] | None:
    """The mirrored (state, reason); None for a run that was never paused or cancelled. Blocks."""
    try:
        row = json.loads(blobs.get(keys.state_json(run)).body)
    except BlobMissingError:
        return None
    return row["state"], row["reason"]
