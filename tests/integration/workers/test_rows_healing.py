"""Rows that nobody has to ask for twice: hints that are lost, and what older versions do."""

from __future__ import annotations

from pathlib import Path

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core import keys
from dflashq.core.stage_spec import ROWS
from dflashq.ledger.connection import PRIORITY_STEPS, SEPARATOR, connect
from dflashq.operations.results.rows import hint_rows
from dflashq.stages.rows.rows_object import write_rows
from tests.support.committed_runs import CommittedRunFixture
from tests.support.sample_rows import commit, sample
from tests.support.stage_workers import stage_worker

FIRST, SECOND, LAST = (keys.batch_name(number) for number in range(3))


def committed(settings: Settings, blobs: Blobs, folder: Path) -> CommittedRunFixture:
    """A run whose first and last batch are on S3."""
    fleet = CommittedRunFixture(settings, blobs, folder)
    record = fleet.enqueue().record
    commit(blobs, record, FIRST, [sample(n) for n in range(5)])
    commit(blobs, record, LAST, [sample(n) for n in (10, 11)])
    return fleet


def lose_hints(settings: Settings, queue: str) -> None:
    """Empty a queue, as a consumer that dies with what it popped."""
    lists = [queue + (f"{SEPARATOR}{step}" if step else "") for step in PRIORITY_STEPS]
    assert connect(settings).delete(*lists)


def test_lost_hints_come_again_and_rows_of_an_older_worker_are_adopted(
    settings: Settings, blobs: Blobs, tmp_path: Path
) -> None:
    """Nobody has to ask again; an older worker put an object and told the ledger nothing."""
    quick = settings.model_copy(update={"sweep_s": 0.3})
    fleet = committed(quick, blobs, tmp_path)
    hint_rows(fleet.ledger, blobs, fleet.hints, "r")
    lose_hints(quick, ROWS.queue)
    older = write_rows(blobs, "r", LAST)
    assert older is not None
    with stage_worker(quick, tmp_path / "worker.log", "--rows") as worker:
        worker.wait(lambda: len(fleet.ledger.done("r", ROWS.name)) == 2, "both are done")
        # The person asked for the rows of the run: those of a later commit come by themselves.
        ref = commit(blobs, fleet.enqueue().record, SECOND, [sample(n) for n in range(5, 10)])
        lease = fleet.ledger.claim("r", SECOND, "w@h", 30.0).lease
        assert lease is not None
        fleet.ledger.complete(lease, ref, ref.counts)
        worker.wait(lambda: len(fleet.ledger.done("r", ROWS.name)) == 3, "all are done")
        assert worker.stop() == 0, worker.log.read_text()
    assert fleet.ledger.done("r", ROWS.name)[LAST] == older.ref
    assert set(fleet.ledger.done("r")) == {SECOND}


def test_a_hint_of_an_older_command_is_served(
    settings: Settings, blobs: Blobs, tmp_path: Path
) -> None:
    """It knows no ledger of rows: the hint alone says what is wanted."""
    fleet = committed(settings, blobs, tmp_path)
    fleet.hints.publish(ROWS.queue, "r", [FIRST, LAST, "batch-000001"], spec=ROWS)
    with stage_worker(settings, tmp_path / "worker.log", "--rows") as worker:
        worker.wait(lambda: len(fleet.ledger.done("r", ROWS.name)) == 2, "both are done")
        assert worker.stop() == 0, worker.log.read_text()
    assert fleet.ledger.status("r").stages[ROWS.name].dead == {}
