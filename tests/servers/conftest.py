"""A run whose batches a test commits by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core.model import RunRecord
from tests.servers.committed import Fleet


@pytest.fixture
def fleet(settings: Settings, blobs: Blobs, tmp_path: Path) -> Fleet:
    return Fleet(settings, blobs, tmp_path)


@pytest.fixture
def record(fleet: Fleet) -> RunRecord:
    return fleet.enqueue().record
