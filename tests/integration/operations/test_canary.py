"""A canary that is dead, lost or not to be judged pauses its own run, and resume goes on."""

from __future__ import annotations

import json
import logging

import pytest

from dflashq.blobs import runs
from dflashq.blobs.s3 import Blobs
from dflashq.core import codec, keys
from dflashq.core.errors import BlobError, DflashqError, LedgerUnreachableError
from dflashq.core.model import Guard
from dflashq.ledger import Ledger
from dflashq.ledger.connection import connect
from dflashq.ledger.monitor_store import MonitorStore
from dflashq.operations.alerts.rules import of_run
from dflashq.operations.housekeeping.canary import judge_canaries
from dflashq.operations.monitoring.actions import RunActions
from dflashq.operations.monitoring.insights import RunView, run_view
from dflashq.operations.monitoring.run_condition import Condition
from dflashq.operations.runs import backfill, control
from dflashq.operations.runs.reconcile import reconcile
from tests.support.committed_runs import SPEC, CommittedRunFixture
from tests.support.sample_rows import bad, commit, sample

CANARY, SECOND, LAST = (keys.batch_name(number) for number in range(3))
GUARDED = SPEC.model_copy(update={"guard": Guard(canary=5, min_median_tokens=0)})


@pytest.fixture
def canary(fleet: CommittedRunFixture) -> CommittedRunFixture:
    """Run `r` of three batches, two of which wait for the canary."""
    fleet.enqueue("r", GUARDED)
    return fleet


def judge(fleet: CommittedRunFixture) -> None:
    judge_canaries(fleet.ledger, fleet.blobs, fleet.hints)


def view(fleet: CommittedRunFixture, run: str = "r") -> RunView:
    return run_view(fleet.ledger.status(run), [])


def resume(fleet: CommittedRunFixture, run: str = "r", *, accept: bool = False) -> str:
    return control.resume(fleet.ledger, fleet.blobs, fleet.hints, run, accept=accept).clause


def settle(fleet: CommittedRunFixture, run: str = "r", *, good: bool = True) -> str:
    """Commit the canary as a worker would; returns the key of its object."""
    record = runs.read_run(fleet.blobs, run)
    rows = [bad(index, "looping") for index in range(0 if good else 4)]
    kept = [sample(index) for index in range(len(rows), 5)]
    ref = commit(fleet.blobs, record, CANARY, kept, rows)
    fleet.complete(ref, run, CANARY)
    return ref.key


def lose(fleet: CommittedRunFixture) -> None:
    connect(fleet.settings).zrem(keys.redis_run("r", "pending"), CANARY)


def pending(fleet: CommittedRunFixture, run: str = "r") -> list[str]:
    return fleet.ledger.claimable(run)


def test_a_dead_canary_pauses_its_run_and_resume_tries_it_again(
    canary: CommittedRunFixture,
) -> None:
    canary.kill("r", CANARY, "its prompts are not on S3")
    assert view(canary).condition == Condition.CANARY_DEAD
    judge(canary)
    status = canary.ledger.status("r")
    assert status.state == "paused"
    for words in (
        f"its canary ({CANARY}) is dead: its prompts are not on S3",
        "Nothing else of the run is begun",
        "`dflashq resume r` tries the canary again",
        "`dflashq resume r --accept` goes on without it",
        "`dflashq cancel r`",
    ):
        assert words in status.reason
        assert words in view(canary).sentence
    assert runs.read_state(canary.blobs, "r") == ("paused", status.reason)
    assert "is tried again" in resume(canary)
    assert (canary.ledger.state("r"), pending(canary)) == ("active", [CANARY])
    assert canary.hints.waiting(SPEC.queue) >= 1
    judge(canary)
    assert canary.ledger.state("r") == "active", "it has its attempts back"
    canary.kill("r", CANARY, "again")
    judge(canary)
    assert canary.ledger.state("r") == "paused", "its cause persists"


def test_accepted_a_dead_canary_is_left_dead_and_the_others_go(canary: CommittedRunFixture) -> None:
    canary.kill("r", CANARY, "conflict")
    judge(canary)
    clause = resume(canary, accept=True)
    assert clause == (
        f"it goes on without its canary ({CANARY}), which stays dead until `dflashq backfill r` "
        "revives it"
    )
    assert runs.read_state(canary.blobs, "r") == ("active", f"resumed; {clause}")
    assert pending(canary) == [SECOND, LAST]
    assert canary.ledger.tolerated("r") == 0.0, "nobody has seen a rejection to accept"
    judge(canary)
    assert canary.ledger.state("r") == "active"
    assert backfill.revive(canary.ledger, canary.hints, "r").revived == [CANARY]


def test_resume_revives_the_canary_alone(canary: CommittedRunFixture) -> None:
    canary.kill("r", CANARY, "conflict")
    canary.ledger.release_canary("r")
    canary.kill("r", SECOND, "conflict")
    connect(canary.settings).hset(keys.redis_run("r", "run"), "waits_for", CANARY)
    resume(canary)
    assert set(canary.ledger.status("r").dead) == {SECOND}


def test_a_lost_canary_pauses_its_run_and_resume_adds_it_again(canary: CommittedRunFixture) -> None:
    lose(canary)
    judge(canary)
    assert f"its canary ({CANARY}) is lost" in canary.ledger.status("r").reason
    assert "is added again" in resume(canary)
    assert pending(canary) == [CANARY]
    lose(canary)
    judge(canary)
    assert "that nobody waits for" in resume(canary, accept=True)
    assert pending(canary) == [CANARY, SECOND, LAST]


def test_an_enqueue_under_way_is_no_lost_canary(fleet: CommittedRunFixture) -> None:
    for known in ([], [SECOND]):
        fleet.ledger.register("r", "f" * 64, SPEC.queue, 12, 3, CANARY)
        fleet.ledger.add("r", known)
        judge(fleet)
        assert fleet.ledger.state("r") == "active"
        assert view(fleet).condition == Condition.ENQUEUE_UNFINISHED


@pytest.mark.parametrize(
    "harm", ["gone", "torn", "other bytes", "not ours", "rejected gone", "no run.json"]
)
def test_a_canary_that_cannot_be_judged_pauses_its_run_alone(
    canary: CommittedRunFixture, harm: str
) -> None:
    key = settle(canary, good=harm != "rejected gone")
    canary.enqueue("s", GUARDED)  # a younger run, behind it in every look
    settle(canary, "s")
    if harm == "gone":
        canary.blobs.delete(key)
    elif harm == "torn":
        canary.blobs.put(key, b"no zstd", canary.blobs.head(key))
    elif harm == "other bytes":
        rows = codec.encode_rows([sample(index) for index in range(4)])
        canary.blobs.put(key, rows, canary.blobs.head(key))
    elif harm == "not ours":
        rows = codec.encode_rows([{"index": 0}])
        same = canary.ledger.done("r")[CANARY].to_json() | {"sha256": codec.sha256(rows)}
        done = keys.redis_run("r", "done")
        connect(canary.settings).hset(done, CANARY, json.dumps(same))
        canary.blobs.put(key, rows, {})
    elif harm == "rejected gone":
        rejected = canary.ledger.done("r")[CANARY].rejected_key
        assert rejected is not None
        canary.blobs.delete(rejected)
    else:
        canary.blobs.delete(keys.run_json("r"))
    judge(canary)
    status = canary.ledger.status("r")
    assert status.state == "paused"
    assert f"its canary ({CANARY}) is done and cannot be judged: " in status.reason
    assert "`dflashq reconcile r`" in status.reason
    assert (canary.ledger.state("s"), canary.ledger.waits_for("s")) == ("active", "")


def test_a_lost_object_is_made_anew_after_reconcile(canary: CommittedRunFixture) -> None:
    canary.blobs.delete(settle(canary))
    judge(canary)
    assert reconcile(canary.ledger, canary.blobs, canary.hints, "r").forgotten == [CANARY]
    resume(canary)
    assert pending(canary) == [CANARY]


def test_where_s3_does_not_answer_nobody_is_paused(
    canary: CommittedRunFixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settle(canary)
    canary.enqueue("s", GUARDED)
    settle(canary, "s")
    read_run = runs.read_run

    def flaky(blobs: Blobs, run: str) -> object:
        if run == "r":
            raise BlobError("S3 refused", transient=True)
        return read_run(blobs, run)

    monkeypatch.setattr(runs, "read_run", flaky)
    judge(canary)
    assert "put off for one run" in caplog.text
    assert (canary.ledger.state("r"), canary.ledger.waits_for("r")) == ("active", CANARY)
    assert view(canary).condition == Condition.NO_WORKER
    assert canary.ledger.waits_for("s") == ""


def test_a_bug_of_the_judge_costs_one_run(
    canary: CommittedRunFixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settle(canary)
    canary.enqueue("s", GUARDED)
    settle(canary, "s")
    waits_for = Ledger.waits_for

    def broken(self: Ledger, run: str) -> str:
        if run == "r":
            raise RuntimeError("a bug")
        return waits_for(self, run)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "waits_for", broken)
        with caplog.at_level(logging.ERROR):
            judge(canary)
    assert "a bug was met at one run" in caplog.text
    assert canary.ledger.waits_for("s") == ""


def test_an_outage_of_redis_is_the_callers(canary: CommittedRunFixture) -> None:
    away = canary.settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
    with pytest.raises(LedgerUnreachableError):
        judge_canaries(Ledger(away), canary.blobs, canary.hints)


def test_whoever_resumes_while_it_is_looked_at_is_not_overruled(
    canary: CommittedRunFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary.kill("r", CANARY, "conflict")

    def resumed_meanwhile(run: str, *_: str) -> str:
        resume(canary, run)
        return "a sentence that is true no more"

    monkeypatch.setattr("dflashq.operations.housekeeping.canary.dead_canary", resumed_meanwhile)
    judge(canary)
    assert canary.ledger.state("r") == "active"
    assert pending(canary) == [CANARY]


def test_a_pause_that_s3_does_not_take_stands_in_the_ledger(
    canary: CommittedRunFixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    canary.kill("r", CANARY, "conflict")

    def refused(*_: object) -> None:
        raise BlobError("S3 is away", transient=True)

    monkeypatch.setattr(runs, "write_state", refused)
    judge(canary)
    assert canary.ledger.state("r") == "paused"
    assert "not mirrored" in caplog.text


def test_a_run_that_is_cancelled_meanwhile_is_not_mirrored_as_paused(
    canary: CommittedRunFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary.kill("r", CANARY, "conflict")
    write_state = runs.write_state

    def after_a_cancel(*args: object) -> None:
        monkeypatch.setattr(runs, "write_state", write_state)
        control.cancel(canary.ledger, canary.blobs, "r", "enough")
        write_state(*args)

    monkeypatch.setattr(runs, "write_state", after_a_cancel)
    judge(canary)
    assert runs.read_state(canary.blobs, "r") == ("cancelled", "enough")


def test_a_run_of_its_canary_alone_is_finished_when_that_dies(fleet: CommittedRunFixture) -> None:
    fleet.enqueue("r", GUARDED, count=5)
    fleet.kill("r", CANARY, "conflict")
    judge(fleet)
    assert fleet.ledger.state("r") == "active"
    assert view(fleet).condition == Condition.FINISHED
    assert "1 batch is dead: dflashq backfill r" in view(fleet).sentence


def test_a_cancelled_run_is_not_resumed_nor_its_canary_revived(canary: CommittedRunFixture) -> None:
    canary.kill("r", CANARY, "conflict")
    control.cancel(canary.ledger, canary.blobs, "r", "enough")
    for accept in (False, True):
        with pytest.raises(DflashqError, match="stays so"):
            resume(canary, accept=accept)
    status = canary.ledger.status("r")
    assert (status.waits_for, set(status.dead)) == (CANARY, {CANARY})


def deaths(fleet: CommittedRunFixture) -> list[str]:
    told = of_run(fleet.ledger, fleet.ledger.status("r"), set())
    return [notice.sentence for notice in told if notice.event == "batch_dead"]


def test_what_is_told_of_a_dead_batch_is_true(canary: CommittedRunFixture) -> None:
    canary.kill("r", CANARY, "conflict")
    [of_canary] = deaths(canary)
    assert "The run goes on" not in of_canary
    assert "nothing else of the run is begun: `dflashq resume r` tries it again" in of_canary
    resume(canary, accept=True)
    assert deaths(canary)[0].endswith("The run goes on; `dflashq backfill r` revives it")
    control.pause(canary.ledger, canary.blobs, "r", "night")
    assert "The run is paused; `dflashq backfill r` revives it" in deaths(canary)[0]
    resume(canary)
    for batch in (SECOND, LAST):
        canary.kill("r", batch, "conflict")
    assert all("Nothing else of the run is left to do" in sentence for sentence in deaths(canary))
    control.cancel(canary.ledger, canary.blobs, "r", "")
    assert all("is cancelled: it is not run again" in sentence for sentence in deaths(canary))


def test_backfill_of_a_paused_run_says_that_nothing_begins(canary: CommittedRunFixture) -> None:
    canary.kill("r", CANARY, "conflict")
    judge(canary)
    actions = RunActions(canary.ledger, canary.blobs, canary.hints, MonitorStore(canary.settings))
    assert "the run is paused, so it begins when somebody resumes it" in actions.revive("r", "me")
    assert backfill.revive(canary.ledger, canary.hints, "r").state == "paused"


def test_batches_that_an_enqueue_left_out_are_added_with_revisions(
    fleet: CommittedRunFixture,
) -> None:
    """Two revisions for two missing batches would make the run look finished."""
    record = fleet.enqueue("r", SPEC).record
    for batch in (SECOND, LAST):
        connect(fleet.settings).zrem(keys.redis_run("r", "pending"), batch)
    fleet.complete(fleet.commit(record, CANARY, range(4), {4: "empty"}), "r", CANARY)
    backfill.rerun_rejected(fleet.ledger, fleet.blobs, fleet.hints, "r", None)
    assert fleet.ledger.pending("r") == [CANARY + ".r1", SECOND, LAST]
