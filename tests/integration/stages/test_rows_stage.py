"""Rows as a leased stage: written, adopted, dead with a reason, asked for again."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core import keys
from dflashq.core.stage_spec import ROWS
from dflashq.ledger import LeaseHeartbeat
from dflashq.operations.results.rows import hint_rows, make_rows
from dflashq.stages.rows.at_once import RowsAtOnce
from dflashq.stages.rows.stage import RowsStage
from dflashq.stages.runner import StageRunner
from tests.support.committed_runs import CommittedRunFixture
from tests.support.sample_rows import commit, sample

FIRST, SECOND = "batch-000000", "batch-000001"


@pytest.fixture
def fleet(settings: Settings, blobs: Blobs, tmp_path: Path) -> CommittedRunFixture:
    """A run with two committed batches."""
    fleet = CommittedRunFixture(settings, blobs, tmp_path)
    record = fleet.enqueue().record
    for number, batch in enumerate((FIRST, SECOND)):
        ref = commit(blobs, record, batch, [sample(5 * number + n) for n in range(5)])
        fleet.complete(ref, "r", batch)
    return fleet


def runner(fleet: CommittedRunFixture) -> StageRunner:
    stage = RowsStage(fleet.ledger, fleet.blobs)
    heartbeat = LeaseHeartbeat(fleet.ledger, fleet.settings.lease_ttl_s)
    return StageRunner(stage, fleet.settings, "rows@h", fleet.ledger, heartbeat)


def test_rows_that_are_there_are_adopted(fleet: CommittedRunFixture) -> None:
    make_rows(fleet.blobs, "r", lambda *_: None)  # as an older worker: the ledger hears nothing
    assert fleet.ledger.status("r").stages == {}
    result = hint_rows(fleet.ledger, fleet.blobs, fleet.hints, "r")
    assert (result.there, result.hinted) == (2, [])
    for _ in range(2):
        assert runner(fleet).process_hint("", "").endswith("done")
    done = fleet.ledger.done("r", ROWS.name)
    assert {batch: ref.counts for batch, ref in done.items()} == {
        FIRST: {"rows": 5},
        SECOND: {"rows": 5},
    }
    assert runner(fleet).process_hint("r", FIRST) == "nothing to do"


def test_rows_that_cannot_be_made_are_dead_with_a_reason_until_asked_for_again(
    fleet: CommittedRunFixture,
) -> None:
    key = keys.rows_object("r", FIRST)
    fleet.blobs.put(key, b"x", {"completions-sha256": "other"})
    hint_rows(fleet.ledger, fleet.blobs, fleet.hints, "r")
    assert "another completions object" in runner(fleet).process_hint("r", FIRST)
    assert "another completions object" in fleet.ledger.status("r").stages["rows"].dead[FIRST]
    fleet.blobs.delete(key)
    assert FIRST in hint_rows(fleet.ledger, fleet.blobs, fleet.hints, "r").hinted
    assert runner(fleet).process_hint("r", FIRST) == f"r/{FIRST} done"
    # An object that somebody deleted is made anew when its rows are asked for.
    fleet.blobs.delete(key)
    assert fleet.ledger.status("r").stages["rows"].done == 1
    assert FIRST in hint_rows(fleet.ledger, fleet.blobs, fleet.hints, "r").hinted
    assert runner(fleet).process_hint("r", FIRST) == f"r/{FIRST} done"


def test_a_commit_that_is_gone_spends_an_attempt_and_is_told(fleet: CommittedRunFixture) -> None:
    hint_rows(fleet.ledger, fleet.blobs, fleet.hints, "r")
    fleet.blobs.delete(keys.completions_object("r", FIRST))
    assert "is not on S3" in runner(fleet).process_hint("r", FIRST)
    assert "dflashq reconcile r" in fleet.ledger.story("r", FIRST, ROWS.name)[-1]["what"]
    assert fleet.ledger.status("r").stages["rows"].pending == 2


def test_rows_at_once_ask_for_the_run_and_leave_the_rest_to_the_sweep(
    fleet: CommittedRunFixture,
) -> None:
    settings = fleet.settings
    heartbeat = LeaseHeartbeat(fleet.ledger, settings.lease_ttl_s)
    at_once = RowsAtOnce(settings, "w1", fleet.ledger, fleet.blobs, heartbeat, "")
    at_once.on_committed("r", SECOND)
    assert set(fleet.ledger.done("r", ROWS.name)) == {SECOND}
    assert fleet.ledger.pending("r", stage=ROWS.name) == [FIRST]
    at_once.stop()
    at_once.on_committed("r", FIRST)
    assert fleet.ledger.pending("r", stage=ROWS.name) == [FIRST], "a stopped one claims nothing"
