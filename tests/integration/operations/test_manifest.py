"""The manifest of a finished run: there when the run is proven, and never of other objects."""

from __future__ import annotations

from dflashq.core import keys
from dflashq.core.model import ObjectRef, RunRecord, counters
from dflashq.ledger.connection import connect
from dflashq.operations.housekeeping.finalize import close_finished
from dflashq.operations.results.verify import verify
from dflashq.operations.runs.backfill import rerun_rejected
from dflashq.operations.runs.control import cancel
from dflashq.operations.runs.manifest import read_manifest
from dflashq.operations.runs.reconcile import reconcile
from tests.support.committed_runs import CommittedRunFixture

FIRST, SECOND, LAST = "batch-000000", "batch-000001", "batch-000002"


class Worker:
    """What one worker remembers between two ticks of its clock."""

    def __init__(self, fleet: CommittedRunFixture) -> None:
        self._fleet = fleet
        self._closed: dict[str, tuple[int, int]] = {}

    def tick(self) -> list[str]:
        return close_finished(self._fleet.ledger, self._fleet.blobs, self._closed)


def named(fleet: CommittedRunFixture) -> dict[str, str] | None:
    manifest = read_manifest(fleet.blobs, "r")
    return manifest and {row["batch"]: row["sha256"] for row in manifest["objects"]}


def do(
    fleet: CommittedRunFixture, record: RunRecord, batch: str, *, rejected: bool = False
) -> ObjectRef:
    """One batch as a worker does it; the last index is rejected on request."""
    first, last = {FIRST: (0, 4), SECOND: (5, 9), LAST: (10, 11)}[batch]
    bad = {last: "truncated"} if rejected else {}
    good = range(first, last + 1 - len(bad))
    ref = fleet.commit(record, batch, good, bad)
    fleet.complete(ref, "r", batch)
    return ref


def test_it_comes_with_the_last_batch_and_only_once(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    worker, other = Worker(fleet), Worker(fleet)
    refs = {batch: do(fleet, record, batch) for batch in (FIRST, SECOND)}
    assert worker.tick() == []
    assert named(fleet) is None
    refs[LAST] = do(fleet, record, LAST, rejected=True)
    assert worker.tick() == ["r"]
    assert named(fleet) == {batch: ref.sha256 for batch, ref in refs.items()}
    manifest = read_manifest(fleet.blobs, "r")
    assert manifest is not None
    assert (manifest["accepted"], manifest["rejected"]) == (11, {"truncated": 1})
    assert (worker.tick(), other.tick()) == ([], [])


def test_one_runs_damaged_manifest_keeps_no_other_run_from_its_own(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    older = fleet.enqueue("damaged").record
    connect(fleet.settings).hset(keys.redis_run("damaged", "run"), "created", 0)
    for run in (older, record):
        for batch, indexes in ((FIRST, range(5)), (SECOND, range(5, 10)), (LAST, range(10, 12))):
            fleet.complete(fleet.commit(run, batch, indexes), run.name, batch)
    fleet.blobs.put(keys.manifest_json("damaged"), b"{oops")
    assert list(fleet.ledger.runs()) == ["damaged", "r"]
    assert Worker(fleet).tick() == ["r"]
    assert named(fleet) is not None


def test_a_batch_that_was_made_anew_renews_it(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    """Also for a worker that did not see the time in between, when the run was not finished."""
    worker, other = Worker(fleet), Worker(fleet)
    first = do(fleet, record, FIRST)
    for batch in (SECOND, LAST):
        do(fleet, record, batch)
    assert worker.tick() == ["r"]
    assert other.tick() == []
    fleet.blobs.delete(first.key)
    assert reconcile(fleet.ledger, fleet.blobs, fleet.hints, "r").forgotten == [FIRST]
    assert named(fleet) is None
    again = do(fleet, record, FIRST, rejected=True)
    assert again.sha256 != first.sha256
    assert verify(fleet.blobs, "r").clean
    assert other.tick() == ["r"]
    assert (named(fleet) or {})[FIRST] == again.sha256
    assert worker.tick() == []


def test_one_that_names_other_objects_is_replaced(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    """Whoever forgot the batch, and however the old manifest came to stay."""
    first = do(fleet, record, FIRST)
    for batch in (SECOND, LAST):
        do(fleet, record, batch)
    worker = Worker(fleet)
    assert worker.tick() == ["r"]
    fleet.blobs.delete(first.key)
    assert fleet.ledger.forget("r", FIRST, first, counters(first, {}))
    do(fleet, record, FIRST, rejected=True)
    assert not verify(fleet.blobs, "r").clean
    assert worker.tick() == ["r"]
    assert verify(fleet.blobs, "r").clean


def test_a_foreign_object_that_is_put_aside_takes_it_back(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    refs = [do(fleet, record, batch) for batch in (FIRST, SECOND, LAST)]
    assert Worker(fleet).tick() == ["r"]
    fleet.blobs.put(refs[0].key, b"of somebody else", {})
    healed = reconcile(fleet.ledger, fleet.blobs, fleet.hints, "r", quarantine=True)
    assert list(healed.quarantined) == [FIRST]
    assert named(fleet) is None


def test_a_revision_is_added(fleet: CommittedRunFixture, record: RunRecord) -> None:
    for batch in (FIRST, SECOND):
        do(fleet, record, batch)
    do(fleet, record, LAST, rejected=True)
    worker = Worker(fleet)
    assert worker.tick() == ["r"]
    made = rerun_rejected(fleet.ledger, fleet.blobs, fleet.hints, "r", "truncated")
    assert worker.tick() == []
    [revision] = made.revisions
    fleet.complete(fleet.commit(record, revision, [11]), "r", revision)
    assert worker.tick() == ["r"]
    assert set(named(fleet) or {}) == {FIRST, SECOND, LAST, revision}


def test_a_dead_batch_or_a_cancelled_run_has_none(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    for batch in (FIRST, SECOND):
        do(fleet, record, batch)
    fleet.kill("r", LAST, "conflict: of another run")
    worker = Worker(fleet)
    assert worker.tick() == []
    cancel(fleet.ledger, fleet.blobs, "r", "enough")
    assert worker.tick() == []
    assert fleet.blobs.head(keys.manifest_json("r")) is None
