"""A worker without an engine: it writes rows from hints, and stops on SIGTERM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core import keys
from dflashq.operations.results.rows import hint_rows
from tests.support.committed_runs import CommittedRunFixture
from tests.support.env import environment
from tests.support.paths import ROOT
from tests.support.sample_rows import commit, sample
from tests.support.wait import WAIT_S, wait_until


def test_a_rows_worker_needs_no_engine(settings: Settings, blobs: Blobs, tmp_path: Path) -> None:
    fleet = CommittedRunFixture(settings, blobs, tmp_path)
    record = fleet.enqueue().record
    commit(blobs, record, "batch-000000", [sample(n) for n in range(5)])
    commit(blobs, record, "batch-000002", [sample(n) for n in (10, 11)])
    assert hint_rows(blobs, fleet.hints, "r").uncommitted == ["batch-000001"]
    log = tmp_path / "worker.log"
    with log.open("wb") as out:
        worker = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "workers", "worker", "--rows"],
            cwd=ROOT,
            env=environment(settings),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wanted = [keys.rows_object("r", name) for name in ("batch-000000", "batch-000002")]

        def written() -> bool:
            assert worker.poll() is None, log.read_text()
            return list(blobs.list(keys.rows_prefix("r"))) == wanted

        wait_until(written, "the rows of both batches are written")
        worker.terminate()
        assert worker.wait(WAIT_S) == 0, log.read_text()
    finally:
        worker.kill()
        worker.wait()
    assert "rows@" in log.read_text()
    assert fleet.hints.waiting(keys.ROWS_QUEUE) == 0
