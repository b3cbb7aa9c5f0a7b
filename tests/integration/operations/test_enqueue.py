"""Enqueue against real servers: once, again, otherwise, and killed at every point."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from dflashq.blobs import runs
from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core import keys
from dflashq.core.errors import ConflictError, SpecMismatchError, UsageError
from dflashq.core.model import Sampling
from dflashq.ledger import Ledger
from dflashq.operations.runs import control
from dflashq.operations.runs.backfill import rerun_rejected
from dflashq.operations.runs.enqueue import check_name
from tests.support.committed_runs import SPEC, CommittedRunFixture

BATCHES = ["batch-000000", "batch-000001", "batch-000002"]


@pytest.fixture
def fleet(settings: Settings, blobs: Blobs, tmp_path: Path) -> CommittedRunFixture:
    return CommittedRunFixture(settings, blobs, tmp_path)


def forget(fleet: CommittedRunFixture) -> None:
    """Redis is wiped."""
    redis.Redis.from_url(fleet.settings.broker_url()).flushdb()


def test_a_run_is_uploaded_recorded_and_hinted(fleet: CommittedRunFixture) -> None:
    done = fleet.enqueue()
    assert (done.continued, done.added, done.hinted, done.state) == (False, 3, 3, "active")
    record = runs.read_run(fleet.blobs, "r")
    assert record == done.record
    assert [(b.name, b.prompts, b.first, b.last) for b in record.batches] == [
        ("batch-000000", 5, 0, 4),
        ("batch-000001", 5, 5, 9),
        ("batch-000002", 2, 10, 11),
    ]
    prompts = [p for b in record.batches for p in runs.read_prompts(fleet.blobs, b)]
    assert [(p.index, p.id) for p in prompts] == [(n, f"p{n}") for n in range(12)]
    assert fleet.ledger.pending("r") == BATCHES
    assert fleet.hints.waiting(SPEC.queue) == 3
    assert ("uploading", 3, 3) in fleet.told
    assert fleet.told[-1] == ("hinting", 3, 3)


def test_the_same_again_continues_and_hints_nothing_twice(fleet: CommittedRunFixture) -> None:
    first = fleet.enqueue()
    fleet.complete(fleet.commit(first.record, BATCHES[0], range(5)), "r", BATCHES[0])
    # The hint of a done batch still lies in the queue: two pending ones need no more.
    again = fleet.enqueue()
    assert (again.continued, again.added, again.hinted) == (True, 0, 0)
    assert again.record == first.record
    assert fleet.ledger.pending("r") == BATCHES[1:]


def test_another_spec_is_refused_with_the_fields_that_differ(fleet: CommittedRunFixture) -> None:
    first = fleet.enqueue()
    other = SPEC.model_copy(update={"sampling": Sampling(top_p=0.5), "revision": "def"})
    with pytest.raises(SpecMismatchError) as caught:
        fleet.enqueue(spec=other)
    assert caught.value.differs == {"revision": ("abc", "def"), "sampling.top_p": (0.95, 0.5)}
    with pytest.raises(SpecMismatchError) as caught:
        fleet.enqueue(count=11)
    assert list(caught.value.differs) == ["prompts_sha256"]
    assert runs.read_run(fleet.blobs, "r") == first.record
    assert fleet.ledger.status("r").fingerprint == first.record.fingerprint


def test_killed_after_the_upload_nothing_is_hinted_and_again_completes(
    fleet: CommittedRunFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs, "write_run", killed)
        with pytest.raises(KeyboardInterrupt):
            fleet.enqueue()
    assert len(list(fleet.blobs.list("runs/r/prompts/"))) == 3
    assert fleet.ledger.state("r") == "unknown"
    assert fleet.hints.waiting(SPEC.queue) == 0
    done = fleet.enqueue()
    assert (done.continued, done.added, done.hinted) == (False, 3, 3)
    assert len(list(fleet.blobs.list("runs/r/prompts/"))) == 3


def test_killed_between_run_json_and_the_ledger_again_completes(
    fleet: CommittedRunFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            fleet.enqueue()
    assert fleet.blobs.head(keys.run_json("r")) is not None
    done = fleet.enqueue()
    assert (done.continued, done.added, done.hinted) == (True, 3, 3)


def test_ctrl_c_while_uploading_does_not_upload_the_rest(fleet: CommittedRunFixture) -> None:
    def ctrl_c(what: str, _done: int, _of: int) -> None:
        if what == "uploading":
            raise KeyboardInterrupt

    fleet.progress = ctrl_c
    with pytest.raises(KeyboardInterrupt):
        fleet.enqueue(spec=SPEC.model_copy(update={"batch_size": 1}), count=200)
    assert len(list(fleet.blobs.list("runs/r/prompts/"))) < 100
    assert fleet.blobs.head(keys.run_json("r")) is None


def test_a_lost_prompt_object_is_put_again(fleet: CommittedRunFixture) -> None:
    record = fleet.enqueue().record
    before = fleet.blobs.get(record.batches[1].key)
    fleet.blobs.delete(record.batches[1].key)
    assert fleet.enqueue().continued
    assert fleet.blobs.get(record.batches[1].key) == before


def test_a_wiped_ledger_is_filled_again(fleet: CommittedRunFixture) -> None:
    record = fleet.enqueue().record
    fleet.commit(record, BATCHES[0], range(4), {4: "truncated"})
    rerun_rejected(fleet.ledger, fleet.blobs, fleet.hints, "r", None)
    forget(fleet)
    done = fleet.enqueue()
    assert (done.continued, done.added, done.hinted) == (True, 4, 4)
    assert fleet.ledger.pending("r") == [BATCHES[0], "batch-000000.r1", *BATCHES[1:]]
    assert fleet.ledger.status("r").prompts == 12


def test_a_wiped_ledger_learns_that_the_run_is_paused(fleet: CommittedRunFixture) -> None:
    fleet.enqueue()
    control.pause(fleet.ledger, fleet.blobs, "r", "night")
    forget(fleet)
    done = fleet.enqueue()
    assert (done.state, done.added, done.hinted) == ("paused", 3, 0)
    assert fleet.ledger.status("r").reason == "night"
    control.resume(fleet.ledger, fleet.blobs, fleet.hints, "r")
    assert fleet.hints.waiting(SPEC.queue) == 3
    assert fleet.enqueue().state == "active"


def test_a_ledger_that_knows_another_run_of_this_name_is_told(fleet: CommittedRunFixture) -> None:
    fleet.ledger.register("r", "f" * 64, SPEC.queue, 1, 1)
    with pytest.raises(ConflictError, match="knows another run"):
        fleet.enqueue()
    assert fleet.ledger.pending("r") == []


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a" * 101, "ä", "{a}"])
def test_a_name_that_cannot_be_a_runs(name: str) -> None:
    with pytest.raises(UsageError, match="no run name"):
        check_name(name)
