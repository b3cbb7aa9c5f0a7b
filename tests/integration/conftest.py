"""A run whose batches a test commits by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core.model import RunRecord
from tests.support.committed_runs import CommittedRunFixture


@pytest.fixture
def fleet(settings: Settings, blobs: Blobs, tmp_path: Path) -> CommittedRunFixture:
    return CommittedRunFixture(settings, blobs, tmp_path)


@pytest.fixture
def record(fleet: CommittedRunFixture) -> RunRecord:
    return fleet.enqueue().record
