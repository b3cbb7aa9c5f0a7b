"""Backfill against real servers: dead batches revived, rejected prompts as revisions."""

from __future__ import annotations

import pytest

from dflashq.blobs import runs
from dflashq.core.errors import DflashqError, UnknownRunError
from dflashq.core.model import RunRecord
from dflashq.ledger import Ledger
from dflashq.operations.runs import control
from dflashq.operations.runs.backfill import BackfillResult, rerun_rejected, revive
from tests.support.committed_runs import SPEC, CommittedRunFixture

FIRST, SECOND, LAST = "batch-000000", "batch-000001", "batch-000002"


def rerun(fleet: CommittedRunFixture, reason: str | None = None) -> BackfillResult:
    return rerun_rejected(fleet.ledger, fleet.blobs, fleet.hints, "r", reason)


def test_dead_batches_are_pending_again_once(fleet: CommittedRunFixture, record: RunRecord) -> None:
    fleet.kill("r", SECOND, "conflict")
    assert fleet.ledger.status("r").dead == {SECOND: "conflict"}
    assert revive(fleet.ledger, fleet.hints, "r").revived == [SECOND]
    assert revive(fleet.ledger, fleet.hints, "r").revived == []
    assert fleet.ledger.pending("r") == [FIRST, SECOND, LAST]
    assert fleet.ledger.status("r").dead == {}
    assert fleet.hints.waiting(SPEC.queue) == 3


def test_all_rejected_prompts_become_one_revision_a_batch(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    fleet.complete(fleet.commit(record, FIRST, range(5)), "r", FIRST)
    ref = fleet.commit(record, SECOND, [5, 7], {6: "empty", 8: "truncated", 9: "empty"})
    fleet.complete(ref, "r", SECOND)
    done = rerun(fleet)
    assert (done.revisions, done.prompts) == ({f"{SECOND}.r1": 3}, 3)
    revision = runs.read_revision(fleet.blobs, "r", f"{SECOND}.r1")
    assert revision.supersedes == {"empty": 2, "truncated": 1}
    prompts = runs.read_prompts(fleet.blobs, revision.batch)
    assert [(p.index, p.id) for p in prompts] == [(6, "p6"), (8, "p8"), (9, "p9")]
    assert fleet.ledger.pending("r") == [f"{SECOND}.r1", LAST]


def test_asked_twice_changes_nothing(fleet: CommittedRunFixture, record: RunRecord) -> None:
    fleet.commit(record, FIRST, range(4), {4: "empty"})
    assert rerun(fleet).revisions == {f"{FIRST}.r1": 1}
    before = list(fleet.blobs.list("runs/r/")), fleet.ledger.pending("r")
    assert rerun(fleet).revisions == {}
    assert rerun(fleet, "empty").revisions == {}
    assert (list(fleet.blobs.list("runs/r/")), fleet.ledger.pending("r")) == before
    assert fleet.hints.waiting(SPEC.queue) == 4


def test_one_reason_and_then_another(fleet: CommittedRunFixture, record: RunRecord) -> None:
    fleet.commit(record, FIRST, [0, 1, 2], {3: "truncated", 4: "empty"})
    assert rerun(fleet, "looping").revisions == {}
    assert rerun(fleet, "truncated").revisions == {f"{FIRST}.r1": 1}
    assert rerun(fleet, None).revisions == {f"{FIRST}.r2": 1}
    second = runs.read_revision(fleet.blobs, "r", f"{FIRST}.r2")
    assert [p.index for p in runs.read_prompts(fleet.blobs, second.batch)] == [4]


def test_what_a_revision_rejected_is_run_again(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    fleet.commit(record, FIRST, [0, 1, 2], {3: "truncated", 4: "truncated"})
    rerun(fleet)
    fleet.commit(record, f"{FIRST}.r1", [3], {4: "looping"})
    assert rerun(fleet, "truncated").revisions == {}
    assert rerun(fleet, "looping").revisions == {f"{FIRST}.r2": 1}
    fleet.commit(record, f"{FIRST}.r2", [4])
    assert rerun(fleet).revisions == {}


def test_killed_before_the_ledger_knew_again_completes(
    fleet: CommittedRunFixture, record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.commit(record, FIRST, range(4), {4: "empty"})

    def killed(_ledger: Ledger, _run: str, batches: list[str]) -> int:
        if batches:
            raise KeyboardInterrupt
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            rerun(fleet)
    assert f"{FIRST}.r1" not in fleet.ledger.pending("r")
    assert rerun(fleet).revisions == {}
    assert f"{FIRST}.r1" in fleet.ledger.pending("r")
    assert fleet.hints.waiting(SPEC.queue) == 4


def test_a_cancelled_run_is_refused_and_left_as_it_is(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    fleet.commit(record, FIRST, range(4), {4: "empty"})
    control.cancel(fleet.ledger, fleet.blobs, "r", "enough")
    before = list(fleet.blobs.list("runs/r/"))
    with pytest.raises(DflashqError, match="cancelled for good"):
        rerun(fleet)
    with pytest.raises(DflashqError, match="cancelled for good"):
        revive(fleet.ledger, fleet.hints, "r")
    assert list(fleet.blobs.list("runs/r/")) == before


def test_a_run_that_is_not_there(fleet: CommittedRunFixture) -> None:
    with pytest.raises(UnknownRunError):
        rerun(fleet)
    with pytest.raises(UnknownRunError):
        revive(fleet.ledger, fleet.hints, "r")
