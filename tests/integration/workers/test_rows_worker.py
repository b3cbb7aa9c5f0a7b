"""A worker without an engine: it writes rows under leases, and stops on SIGTERM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core import keys
from dflashq.core.stage_spec import ROWS
from dflashq.ledger.connection import connect
from dflashq.operations.results.rows import hint_rows
from tests.support.committed_runs import CommittedRunFixture
from tests.support.env import environment
from tests.support.paths import ROOT
from tests.support.sample_rows import commit, sample
from tests.support.wait import WAIT_S, wait_until


def test_a_rows_worker_needs_no_engine(settings: Settings, blobs: Blobs, tmp_path: Path) -> None:
    settings = settings.model_copy(update={"sweep_s": 0.3})
    fleet = CommittedRunFixture(settings, blobs, tmp_path)
    record = fleet.enqueue().record
    older = fleet.enqueue("older").record
    commit(blobs, record, "batch-000000", [sample(n) for n in range(5)])
    commit(blobs, record, "batch-000002", [sample(n) for n in (10, 11)])
    commit(blobs, older, "batch-000000", [sample(n) for n in range(5)])
    result = hint_rows(fleet.ledger, blobs, fleet.hints, "r")
    assert result.uncommitted == ["batch-000001"]
    assert fleet.hints.waiting(ROWS.queue) == 2
    # Every hint is lost, as when a worker is killed with them in its hands.
    raw = connect(settings)
    raw.delete(*raw.keys(f"{ROWS.queue}*"))
    assert fleet.hints.waiting(ROWS.queue) == 0
    # A command of an older version tells the ledger nothing.
    fleet.hints.publish(ROWS.queue, "older", ["batch-000000", "batch-000001"], spec=ROWS)
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

        def done(run: str) -> set[str]:
            assert worker.poll() is None, log.read_text()
            return set(fleet.ledger.done(run, ROWS.name))

        wait_until(
            lambda: done("r") == {"batch-000000", "batch-000002"}, "both batches have their rows"
        )
        wait_until(lambda: done("older") == {"batch-000000"}, "an older command is served")
        ref = commit(blobs, record, "batch-000001", [sample(n) for n in range(5, 10)])
        fleet.complete(ref, "r", "batch-000001")
        wait_until(lambda: "batch-000001" in done("r"), "what is committed later gets its rows")
        worker.terminate()
        assert worker.wait(WAIT_S) == 0, log.read_text()
    finally:
        worker.kill()
        worker.wait()
    names = [f"batch-00000{number}" for number in range(3)]
    assert list(blobs.list(keys.rows_prefix("r"))) == [keys.rows_object("r", n) for n in names]
    assert "rows@" in log.read_text()
    status = fleet.ledger.status("r")
    assert status.stages["rows"].counts() == {"pending": 0, "leased": 0, "done": 3, "dead": 0}
    assert status.pending == 2, "generate is counted apart"
