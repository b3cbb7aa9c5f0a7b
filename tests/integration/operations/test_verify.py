"""Verify against a real S3: what is there, what is not, and what should not be."""

from __future__ import annotations

import pytest

from dflashq.core import codec, keys
from dflashq.core.errors import UnknownRunError
from dflashq.core.model import RunRecord
from dflashq.operations.results.verify import verify
from dflashq.operations.runs.backfill import rerun_rejected
from tests.support.committed_runs import CommittedRunFixture

FIRST, SECOND, LAST = "batch-000000", "batch-000001", "batch-000002"


def commit_all(fleet: CommittedRunFixture, record: RunRecord) -> None:
    fleet.commit(record, FIRST, range(5))
    fleet.commit(record, SECOND, [5, 6, 7], {8: "truncated", 9: "empty"})
    fleet.commit(record, LAST, [], {10: "empty", 11: "looping"})


def damage(fleet: CommittedRunFixture, key: str) -> None:
    """Another body under the same metadata."""
    metadata = fleet.blobs.get(key).metadata
    fleet.blobs.put(key, codec.encode_rows([{"index": 0}]), metadata)


def test_a_whole_run_is_clean(fleet: CommittedRunFixture, record: RunRecord) -> None:
    commit_all(fleet, record)
    steps: list[tuple[int, int]] = []
    report = verify(fleet.blobs, "r", lambda done, of: steps.append((done, of)))
    assert report.clean
    assert (report.committed, report.accepted, report.output_tokens) == (3, 8, 56)
    assert report.rejected == {"empty": 2, "looping": 1, "truncated": 1}
    assert report.fingerprint == record.fingerprint
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_a_batch_that_is_not_committed_is_missing(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    fleet.commit(record, FIRST, range(5))
    fleet.commit(record, LAST, [10, 11])
    report = verify(fleet.blobs, "r")
    assert not report.clean
    assert report.missing == [f"{SECOND}: 5 prompts not committed yet"]
    assert (report.problems, report.accepted) == ([], 7)


def test_a_damaged_object_is_a_problem_not_missing(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    commit_all(fleet, record)
    damage(fleet, keys.completions_object("r", FIRST))
    report = verify(fleet.blobs, "r")
    assert report.missing == []
    (problem,) = report.problems
    assert problem.startswith(f"{FIRST}: ")
    assert "is damaged" in problem
    assert report.committed == 2


def test_a_damaged_rejected_object_is_a_problem(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    commit_all(fleet, record)
    (key,) = fleet.blobs.list(f"runs/r/rejected/{SECOND}")
    damage(fleet, key)
    (problem,) = verify(fleet.blobs, "r").problems
    assert key in problem


def test_a_lost_rejected_object_leaves_its_prompts_unrecorded(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    commit_all(fleet, record)
    (key,) = fleet.blobs.list(f"runs/r/rejected/{SECOND}")
    fleet.blobs.delete(key)
    report = verify(fleet.blobs, "r")
    assert report.clean
    assert report.rejected == {"empty": 1, "looping": 1, "unrecorded": 2}


def test_an_index_of_another_batch(fleet: CommittedRunFixture, record: RunRecord) -> None:
    fleet.commit(record, FIRST, range(6))
    fleet.commit(record, SECOND, range(5, 10))
    fleet.commit(record, LAST, [10, 11])
    (problem,) = verify(fleet.blobs, "r").problems
    assert "indexes of another batch: 5" in problem


@pytest.mark.parametrize(
    ("accepted", "rejected", "said"),
    [
        ([0, 1, 1, 2, 3, 4], {}, "holds an index twice"),
        ([0, 1, 2, 3, 4], {4: "empty"}, "share indexes: 4"),
        ([0, 1, 2], {4: "empty"}, "lack the indexes 3"),
    ],
)
def test_an_index_twice_or_nowhere(
    fleet: CommittedRunFixture,
    record: RunRecord,
    accepted: list[int],
    rejected: dict[int, str],
    said: str,
) -> None:
    fleet.commit(record, FIRST, accepted, rejected)
    (problem,) = verify(fleet.blobs, "r").problems
    assert said in problem


def test_metadata_that_counts_something_else(fleet: CommittedRunFixture, record: RunRecord) -> None:
    fleet.commit(record, FIRST, range(5), counts={"accepted": 4})
    (problem,) = verify(fleet.blobs, "r").problems
    assert "not what its metadata counts" in problem


def test_objects_of_nobody(fleet: CommittedRunFixture, record: RunRecord) -> None:
    commit_all(fleet, record)
    fleet.commit(record, "batch-000003", [12])
    fleet.blobs.put("runs/r/completions/notes.txt", b"mine")
    report = verify(fleet.blobs, "r")
    assert report.problems == [
        "runs/r/completions/batch-000003.jsonl.zst belongs to no batch of this run",
        "runs/r/completions/notes.txt belongs to no batch of this run",
    ]


def test_a_commit_of_another_run(fleet: CommittedRunFixture, record: RunRecord) -> None:
    fleet.enqueue("other", count=11)
    blob = fleet.blobs.get(fleet.commit(record, FIRST, range(5)).key)
    fleet.blobs.put(keys.completions_object("other", FIRST), blob.body, blob.metadata)
    (problem,) = verify(fleet.blobs, "other").problems
    assert "belongs to another run" in problem


def test_an_object_without_our_metadata_and_rows_without_an_index(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    fleet.blobs.put(keys.completions_object("r", FIRST), b"anything")
    body = codec.encode_rows([{"text": "no index"}])
    ref = fleet.commit(record, SECOND, range(5, 10))
    metadata = fleet.blobs.get(ref.key).metadata
    metadata["ref"] = metadata["ref"].replace(ref.sha256, codec.sha256(body))
    fleet.blobs.put(ref.key, body, metadata)
    first, second = verify(fleet.blobs, "r").problems
    assert "carries no reference of ours" in first
    assert second.startswith(f"{SECOND}: ")


def test_a_revision_supersedes_what_was_rejected(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    commit_all(fleet, record)
    made = rerun_rejected(fleet.ledger, fleet.blobs, fleet.hints, "r", "empty")
    assert made.revisions == {f"{SECOND}.r1": 1, f"{LAST}.r1": 1}
    report = verify(fleet.blobs, "r")
    assert report.missing == [
        f"{SECOND}.r1: 1 prompt not committed yet",
        f"{LAST}.r1: 1 prompt not committed yet",
    ]
    fleet.commit(record, f"{SECOND}.r1", [9])
    fleet.commit(record, f"{LAST}.r1", [], {10: "truncated"})
    report = verify(fleet.blobs, "r")
    assert report.clean
    assert report.accepted == 9
    assert report.rejected == {"looping": 1, "truncated": 2}


def test_a_revision_of_a_prompt_that_was_accepted(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    commit_all(fleet, record)
    rerun_rejected(fleet.ledger, fleet.blobs, fleet.hints, "r", "truncated")
    fleet.blobs.delete(keys.completions_object("r", SECOND))
    fleet.commit(record, SECOND, range(5, 10))
    fleet.commit(record, f"{SECOND}.r1", [8])
    (problem,) = verify(fleet.blobs, "r").problems
    assert "1 indexes were accepted before: [8]" in problem


def test_a_run_that_is_not_there(fleet: CommittedRunFixture) -> None:
    with pytest.raises(UnknownRunError, match="no run named 'nope'"):
        verify(fleet.blobs, "nope")
