"""Rows under a lease: written, adopted, refused; each story is in the ledger."""

from __future__ import annotations

import pytest

from dflashq.cli import text_views
from dflashq.core import keys
from dflashq.core.errors import UnknownRunError
from dflashq.core.model import RunRecord
from dflashq.core.stage_spec import ROWS
from dflashq.ledger import LeaseHeartbeat
from dflashq.operations.results.rows import hint_rows
from dflashq.stages.rows.stage import RowsStage
from dflashq.stages.runner import StageRunner
from tests.support.committed_runs import CommittedRunFixture
from tests.support.sample_rows import commit, sample

FIRST, SECOND, LAST = (keys.batch_name(number) for number in range(3))


@pytest.fixture
def runner(fleet: CommittedRunFixture, record: RunRecord) -> StageRunner:
    commit(fleet.blobs, record, FIRST, [sample(n) for n in range(5)])
    commit(fleet.blobs, record, SECOND, [sample(n) for n in range(5, 8)])
    settings = fleet.settings
    heartbeat = LeaseHeartbeat(fleet.ledger, settings.lease_ttl_s)
    return StageRunner(
        RowsStage(fleet.ledger, fleet.blobs), settings, "w1", fleet.ledger, heartbeat
    )


def test_rows_of_another_commit_are_dead_with_a_reason_until_they_are_asked_for_again(
    fleet: CommittedRunFixture, runner: StageRunner
) -> None:
    key = keys.rows_object("r", FIRST)
    fleet.blobs.put(key, b"x", {"completions-sha256": "other"})
    assert hint_rows(fleet.ledger, fleet.blobs, fleet.hints, "r").hinted == [SECOND]
    assert "is dead: conflict" in runner.process_hint("r", FIRST)
    assert runner.process_hint("r", SECOND) == f"r/{SECOND} done"
    stage = fleet.ledger.status("r").stages[ROWS.name]
    assert (stage.pending, stage.leased, stage.done) == (0, 0, 1)
    assert "another completions object" in stage.dead[FIRST]
    shown = "\n".join(text_views.run_lines(text_views.read_details(fleet.ledger, "r")))
    assert "rows      1 of 3 done, 0 leased, 0 pending, 1 waiting, 1 dead" in shown
    assert f"dead: rows/{FIRST}: conflict" in shown

    fleet.blobs.delete(key)
    assert hint_rows(fleet.ledger, fleet.blobs, fleet.hints, "r").hinted == [FIRST]
    assert runner.process_hint("r", FIRST) == f"r/{FIRST} done"
    assert fleet.ledger.status("r").stages[ROWS.name].dead == {}


def test_rows_that_are_gone_from_s3_are_made_again(
    fleet: CommittedRunFixture, runner: StageRunner
) -> None:
    hint_rows(fleet.ledger, fleet.blobs, fleet.hints, "r")
    assert runner.process_hint("r", FIRST) == f"r/{FIRST} done"
    ref = fleet.ledger.done("r", ROWS.name)[FIRST]
    fleet.blobs.delete(ref.key)
    assert FIRST in hint_rows(fleet.ledger, fleet.blobs, fleet.hints, "r").hinted
    assert runner.process_hint("r", FIRST) == f"r/{FIRST} done"
    assert fleet.ledger.done("r", ROWS.name)[FIRST] == ref
    assert fleet.blobs.head(ref.key) is not None


def test_what_is_not_on_s3_fails_and_the_next_is_served(
    fleet: CommittedRunFixture, runner: StageRunner
) -> None:
    hint_rows(fleet.ledger, fleet.blobs, fleet.hints, "r")
    fleet.ledger.add("r", [LAST], ROWS.name)
    assert "is not on S3" in runner.process_hint("r", LAST)
    assert "is not on S3" in fleet.ledger.story("r", LAST, ROWS.name)[-1]["what"]
    assert runner.process_hint("r", FIRST) == f"r/{FIRST} done"
    with pytest.raises(UnknownRunError):
        hint_rows(fleet.ledger, fleet.blobs, fleet.hints, "absent")
