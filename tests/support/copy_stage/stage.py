"""The copy stage: it keeps every line that it has copied, and commits the whole."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

from dflashq.blobs.s3 import Blobs
from dflashq.core import codec, keys
from dflashq.core.model import ObjectRef, canonical_json
from dflashq.core.stage_spec import GENERATE, StageSpec
from dflashq.ledger import Ledger
from dflashq.stages.attempt import Attempt
from dflashq.stages.base import UnkeptStage
from dflashq.stages.run_cache import RunCache

COPY = StageSpec(
    name="copy",
    task="tests.copy",
    queue="copy",
    folder="copies",
    suffix=".jsonl.zst",
    upstream="generate",
    needs_engine=False,
)
HOLD_FILE = "DFLASHQ_TEST_COPY_HOLD"


class CopyStage(UnkeptStage):
    """While the file named by HOLD_FILE exists, an attempt goes no further than its first line."""

    spec = COPY

    def __init__(self, ledger: Ledger, blobs: Blobs) -> None:
        self._ledger, self._blobs, self._runs = ledger, blobs, RunCache(blobs)

    def run(self, attempt: Attempt, another_worker: Callable[[], bool]) -> ObjectRef:
        lease, key = attempt.lease, keys.stage_object(attempt.lease.run, COPY, attempt.lease.batch)
        source = keys.stage_object(lease.run, GENERATE, lease.batch)
        attempt.retry_until_stopped(lambda: self._ledger.begin(lease), "beginning")
        body = attempt.retry_until_stopped(lambda: self._blobs.get(source).body, "reading")
        lines = codec.decompress(body).splitlines(keepends=True)
        kept = attempt.retry_until_stopped(lambda: self._ledger.kept_entries(lease), "resuming")
        for number, line in enumerate(lines):
            if str(number) not in kept:
                self._keep(attempt, str(number), line)
                self._wait_released(attempt)
        copied = codec.compress(b"".join(lines))
        counts = {"copied": len(lines), "resumed": len(kept)}
        fingerprint = self._runs.run(lease.run).fingerprint
        ref = ObjectRef(key, codec.sha256(copied), fingerprint, counts)
        metadata = {"ref": canonical_json(ref.to_json()).decode()}
        if not self._blobs.put_absent(key, copied, metadata):
            ref = ObjectRef.from_json(json.loads((self._blobs.head(key) or {})["ref"]))
        attempt.retry_until_stopped(
            lambda: self._ledger.complete(lease, ref, ref.counts), "completing"
        )
        return ref

    def _keep(self, attempt: Attempt, field: str, line: bytes) -> None:
        attempt.retry_until_stopped(
            lambda: self._ledger.keep(attempt.lease, [(field, line)]), "keeping"
        )

    def _wait_released(self, attempt: Attempt) -> None:
        hold = os.environ.get(HOLD_FILE)
        while hold and Path(hold).exists():
            attempt.check()
            threading.Event().wait(0.05)
