"""The copy stage: each line is kept once copied, and the object is put once all are."""

from __future__ import annotations

import json
from collections.abc import Callable

from dflashq.blobs import commits, runs
from dflashq.blobs.s3 import Blobs
from dflashq.core import codec, keys
from dflashq.core.errors import BlobMissingError
from dflashq.core.model import ObjectRef, canonical_json
from dflashq.ledger import Ledger
from dflashq.stages.attempt import Attempt
from dflashq.stages.base import EnginelessStage
from tests.support.copy_stage import COPY
from tests.support.wait import wait_until

HOLD_AFTER = 3  # lines that are copied before an attempt looks for the object `hold_key`


def hold_key(run: str) -> str:
    """While this object is on S3, no attempt copies more than `HOLD_AFTER` lines."""
    return f"runs/{run}/hold-copies"


class CopyStage(EnginelessStage):
    """Copies the accepted lines of a batch. Its metadata says how many an attempt found kept."""

    spec = COPY

    def __init__(self, ledger: Ledger, blobs: Blobs) -> None:
        self._ledger, self._blobs = ledger, blobs

    def run(self, attempt: Attempt, another_worker: Callable[[], bool]) -> ObjectRef:
        lease = attempt.lease
        attempt.retry_until_stopped(lambda: self._ledger.begin(lease), "beginning")
        record = runs.read_run(self._blobs, lease.run)
        source = commits.read_reference(self._blobs, lease.run, lease.batch, record.fingerprint)
        if source is None:
            raise BlobMissingError(f"{lease.run}/{lease.batch} is not committed")
        ref = attempt.retry_until_stopped(lambda: self._copy(attempt, source), "copying")
        attempt.retry_until_stopped(
            lambda: self._ledger.complete(lease, ref, ref.counts), "completing"
        )
        return ref

    def _copy(self, attempt: Attempt, source: ObjectRef) -> ObjectRef:
        lease = attempt.lease
        kept = self._ledger.kept_entries(lease)
        lines = dict(kept)
        for number, row in enumerate(commits.accepted_rows(self._blobs, source)):
            field = f"{number}:line"
            if field not in lines:
                lines[field] = codec.encode_line(row)
                assert self._ledger.keep(lease, [(field, lines[field])])
            if len(lines) == HOLD_AFTER:
                wait_until(lambda: not self._held(attempt), "the copies may go on")
        body = b"".join(lines[f"{number}:line"] for number in range(len(lines)))
        key = keys.stage_object(lease.run, COPY, lease.batch)
        ref = ObjectRef(key, codec.sha256(body), source.fingerprint, {"lines": len(lines)})
        metadata = {"ref": canonical_json(ref.to_json()).decode(), "resumed": str(len(kept))}
        if self._blobs.put_absent(key, body, metadata):
            return ref
        return ObjectRef.from_json(json.loads(self._blobs.get(key).metadata["ref"]))

    def _held(self, attempt: Attempt) -> bool:
        attempt.check()
        return self._blobs.head(hold_key(attempt.lease.run)) is not None
