"""The records on S3 that a worker reads and writes beside the batches; cached where immutable."""

from __future__ import annotations

import json
from typing import Any

from dflashq.blobs import runs
from dflashq.blobs.s3 import Blobs
from dflashq.core import keys
from dflashq.core.engine_identity import differences, truth_of
from dflashq.core.errors import EngineMismatchError
from dflashq.core.model import BatchRecord, RunRecord, canonical_json


class RunCache:
    """Run records by name, batches by name, and the engines recorded so far. Calls block on S3."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._runs: dict[str, RunRecord] = {}
        self._engines: set[tuple[str, str]] = set()
        self._truths: dict[str, dict[str, Any]] = {}

    def run(self, run: str) -> RunRecord:
        """`run.json`, read once: a run is immutable under its name."""
        if run not in self._runs:
            self._runs[run] = runs.read_run(self._blobs, run)
        return self._runs[run]

    def batch(self, record: RunRecord, batch: str) -> tuple[BatchRecord, dict[str, int]]:
        """A batch and, for a revision, what it supersedes by reason."""
        if keys.parse_batch(batch)[1]:
            revision = runs.read_revision(self._blobs, record.name, batch)
            return revision.batch, revision.supersedes
        return runs.batch_record(self._blobs, record, batch), {}

    def check_truth(self, run: str, engine: dict[str, Any]) -> None:
        """EngineMismatchError when this engine would answer otherwise than the run's first one."""
        mine = truth_of(engine)
        if self._truths.get(run) == mine:
            return
        key = keys.truth_json(run)
        self._blobs.put_absent(key, canonical_json(mine), {})
        found = differences(json.loads(self._blobs.get(key).body), mine)
        if found:
            raise EngineMismatchError(
                f"this engine must not answer for run {run!r}: {found}. Samples of two models in "
                "one run would train a drafter for neither: give this host the run's model, or "
                "enqueue another run."
            )
        self._truths[run] = mine

    def engine(self, run: str, engine_id: str, record: dict[str, object]) -> None:
        """Put an engine's record beside the samples that name it, once a run."""
        if (run, engine_id) not in self._engines:
            self._blobs.put_absent(keys.engine_object(run, engine_id), canonical_json(record), {})
            self._engines.add((run, engine_id))
