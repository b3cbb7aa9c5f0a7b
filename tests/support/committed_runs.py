"""Runs with batches committed by hand, for tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from dflashq.blobs.commits import write_commit
from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core import codec
from dflashq.core.model import Guard, ObjectRef, RunRecord, RunSpec
from dflashq.ledger import Hints, Ledger
from dflashq.operations.runs.enqueue import EnqueueResult, Progress, enqueue, run_record
from dflashq.prompts.batches import spooled

# No canary: most tests are about all the batches at once.
SPEC = RunSpec(
    model="maker/model",
    revision="abc",
    queue="generate.model",
    guard=Guard(canary=0),
    batch_size=5,
)


@dataclass
class CommittedRunFixture:
    """The clients of a test, and a run of 12 prompts in batches of 5."""

    settings: Settings
    blobs: Blobs
    folder: Path

    def __post_init__(self) -> None:
        self.ledger, self.hints = Ledger(self.settings), Hints(self.settings)
        self.told: list[tuple[str, int, int]] = []
        self.progress: Progress = lambda *told: self.told.append(told)

    def prompts(self, count: int = 12) -> Path:
        path = self.folder / f"prompts-{count}.jsonl"
        rows = ({"id": f"p{n}", "prompt": f"What is {n}?"} for n in range(count))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def enqueue(self, run: str = "r", spec: RunSpec = SPEC, count: int = 12) -> EnqueueResult:
        with spooled(
            [self.prompts(count)],
            rejected_path=self.folder / "rejected",
            batch_size=spec.batch_size,
        ) as prepared:
            asked = run_record(run, spec, prepared, datetime(2026, 1, 2, tzinfo=UTC))
            return enqueue(self.ledger, self.blobs, self.hints, asked, prepared, self.progress)

    def commit(
        self,
        record: RunRecord,
        batch: str,
        accepted: Iterable[int],
        rejected: Mapping[int, str] | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> ObjectRef:
        """Put a batch's commit objects, as a worker would; `counts` override what is counted."""
        accepted, rejected = list(accepted), dict(rejected or {})
        counted = {"prompts": len(accepted) + len(rejected), "accepted": len(accepted)}
        counted["output_tokens"] = 7 * len(accepted)
        for reason in rejected.values():
            counted[f"rejected_{reason}"] = counted.get(f"rejected_{reason}", 0) + 1
        bad = codec.encode_rows({"index": i, "reason": why} for i, why in rejected.items())
        ref = write_commit(
            self.blobs,
            record.name,
            batch,
            record.fingerprint,
            codec.encode_rows({"index": i} for i in accepted),
            bad if rejected else None,
            counted | dict(counts or {}),
        )
        assert ref is not None
        return ref

    def complete(self, ref: ObjectRef, run: str, batch: str) -> None:
        """The ack that goes with a commit."""
        lease = self.ledger.claim(run, batch, "w@h", 30.0).lease
        assert lease is not None
        assert lease.batch == batch
        self.ledger.complete(lease, ref, ref.counts)

    def kill(self, run: str, batch: str, reason: str) -> None:
        """Let a batch die."""
        lease = self.ledger.claim(run, batch, "w@h", 30.0).lease
        assert lease is not None
        assert lease.batch == batch
        assert self.ledger.kill(lease, reason)
