"""A third stage goes the way of the others: claimed, kept, killed, resumed, committed, shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflashq.blobs.commits import accepted_rows
from dflashq.blobs.s3 import Blobs
from dflashq.cli import text_views
from dflashq.config import Settings
from dflashq.core import codec, keys
from dflashq.core.model import ObjectRef
from dflashq.ledger.connection import connect
from dflashq.operations.monitoring.prometheus import render
from dflashq.stages.request import request_stage
from tests.support.committed_runs import CommittedRunFixture
from tests.support.copy_stage import COPY
from tests.support.copy_stage.stage import HOLD_AFTER, hold_key
from tests.support.stage_workers import StageWorkerHandle, stage_worker

pytestmark = pytest.mark.fleet
APP = "tests.support.copy_stage.worker"
FIRST, SECOND, LAST = (keys.batch_name(number) for number in range(3))


def kept(fleet: CommittedRunFixture) -> dict[str, int]:
    """How much is kept of each leased batch of the stage."""
    return {b.name: b.kept for b in fleet.ledger.batch_states("r", COPY.name) if b.kept}


def wait_done(fleet: CommittedRunFixture, worker: StageWorkerHandle, count: int) -> None:
    worker.wait(
        lambda: len(fleet.ledger.done("r", COPY.name)) == count, f"{count} batches are copied"
    )


def shown(fleet: CommittedRunFixture) -> list[str]:
    """The line of the stage in `dflashq status r`."""
    lines = text_views.run_lines(text_views.read_details(fleet.ledger, "r"))
    return [line for line in lines if line.startswith("copy ")]


def test_a_stage_of_tests_is_killed_resumed_and_shown(
    fast: Settings, blobs: Blobs, tmp_path: Path
) -> None:
    fleet = CommittedRunFixture(fast, blobs, tmp_path)
    record = fleet.enqueue().record
    refs: dict[str, ObjectRef] = {}
    for batch, first in ((FIRST, 0), (SECOND, 5)):
        refs[batch] = fleet.commit(record, batch, range(first, first + 5))
        fleet.complete(refs[batch], "r", batch)
    blobs.put(hold_key("r"), b"hold")
    assert shown(fleet) == []
    assert request_stage(fleet.ledger, blobs, "r", COPY) == 2
    assert shown(fleet) == ["copy      0 of 3 done, 0 leased, 2 pending, 1 waiting, 0 dead"]

    with stage_worker(fast, tmp_path / "a.log", "--stage", "copy", "-n", "a@test", app=APP) as dead:
        full = {FIRST: HOLD_AFTER, SECOND: HOLD_AFTER}
        dead.wait(lambda: kept(fleet) == full, "both batches are half copied")
        assert shown(fleet) == ["copy      0 of 3 done, 2 leased, 0 pending, 1 waiting, 0 dead"]
        dead.kill()
    blobs.delete(hold_key("r"))

    with stage_worker(fast, tmp_path / "b.log", "--stage", "copy", "-n", "b@test", app=APP) as heir:
        wait_done(fleet, heir, 2)
        # What its upstream commits from now on comes by itself.
        refs[LAST] = fleet.commit(record, LAST, (10, 11))
        fleet.complete(refs[LAST], "r", LAST)
        wait_done(fleet, heir, 3)
        assert heir.stop() == 0, heir.log.read_text()

    for batch, ref in refs.items():
        blob = blobs.get(keys.stage_object("r", COPY, batch))
        assert blob.body == b"".join(codec.encode_line(row) for row in accepted_rows(blobs, ref))
        assert blob.metadata["resumed"] == str(full.get(batch, 0))
    stories = [fleet.ledger.story("r", batch, COPY.name)[0]["what"] for batch in (FIRST, SECOND)]
    assert all("worker a@test" in what and "fell silent" in what for what in stories), stories
    assert shown(fleet) == ["copy      3 of 3 done, 0 leased, 0 pending, 0 dead"]
    told = render(fleet.ledger).decode()
    assert 'dflashq_stage_batches{run="r",stage="copy",state="done"} 3.0' in told
    assert connect(fast).hget(keys.ledger_key("r", "run", COPY.name), "kept_bytes") == b"0"
    # Generate knows nothing of it.
    assert fleet.ledger.status("r").counters["accepted"] == 12
