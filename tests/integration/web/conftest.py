"""A monitor on real servers, and a run with samples in two batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core.model import RunRecord
from tests.support.committed_runs import CommittedRunFixture
from tests.support.monitor_fixture import MonitorFixture
from tests.support.sample_rows import bad, commit, sample


@dataclass
class Sampled:
    """Run `r`: 12 prompts in three batches, two of them committed and in the ledger."""

    fleet: CommittedRunFixture
    record: RunRecord

    def settle(self, batch: str, good: list[int], rejected: dict[int, str]) -> None:
        """Commit a batch as a worker would, and enter it in the ledger."""
        rows = [bad(index, reason) for index, reason in rejected.items()]
        ref = commit(self.fleet.blobs, self.record, batch, map(sample, good), rows)
        counts = ref.counts | {"output_tokens": 40 * (len(good) + len(rejected))}
        assert self.fleet.ledger.adopt("r", batch, replace(ref, counts=counts), counts)


@pytest.fixture
def sampled(settings: Settings, tmp_path: Path) -> Sampled:
    fleet = CommittedRunFixture(settings, Blobs(settings), tmp_path)
    found = Sampled(fleet, fleet.enqueue().record)
    fleet.ledger.release_canary("r")
    found.settle("batch-000000", [0, 1, 2], {3: "truncated", 4: "looping"})
    found.settle("batch-000001", [5, 6, 7, 8, 9], {})
    return found


@pytest.fixture
def stage(settings: Settings) -> MonitorFixture:
    return MonitorFixture(settings)
