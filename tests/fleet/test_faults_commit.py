"""The odd cases of the commit point, met by workers: foreign objects, missing rejected rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflashq.blobs import commits
from dflashq.blobs.runs import read_run
from dflashq.core import codec, keys
from dflashq.core.model import counters
from dflashq.operations.results.verify import verify
from dflashq.operations.runs.reconcile import reconcile
from tests.support.fault_fleet import FaultFleet

pytestmark = pytest.mark.fleet


def completions(run: str, number: int = 0) -> str:
    return keys.completions_object(run, keys.batch_name(number))


def with_one_too_long(fault_fleet: FaultFleet, run: str, prompts: int) -> Path:
    """A prompt file of which one prompt is rejected as too long."""
    rows = [
        {"id": f"p{n}", "messages": [{"role": "user", "content": f"{run}: what is {n}?"}]}
        for n in range(prompts)
    ]
    rows[3]["messages"] = [{"role": "user", "content": "many words here " * 16000}]
    path = fault_fleet.folder / f"{run}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_foreign_object_at_the_commit_point_kills_the_batch_until_it_is_moved(
    two: FaultFleet,
) -> None:
    """Whoever wrote it: it is neither overwritten nor counted, the other batches go on."""
    foreign = codec.compress(b'{"index": 0}\n')
    for run, body, metadata in (
        ("foreign", foreign, {}),
        ("foreign-print", foreign, {"ref": '{"fingerprint": "of another run"}'}),
    ):
        two.blobs.put(completions(run), body, metadata)
        two.begin(run, 40, batch_size=20)
        two.wait_finished(run)
        status = two.ledger.status(run)
        assert status.done == 1
        assert status.dead[keys.batch_name(0)].startswith("conflict: ")
        assert two.blobs.get(completions(run)).body == body
        assert not verify(two.blobs, run).clean
        healed = reconcile(two.ledger, two.blobs, two.hints, run)
        assert list(healed.conflicts) == [keys.batch_name(0)]
        assert two.ledger.status(run).dead
        healed = reconcile(two.ledger, two.blobs, two.hints, run, quarantine=True)
        assert list(healed.quarantined) == [keys.batch_name(0)]
        two.wait_finished(run)
        assert two.oracle(run).accepted == 40
        assert two.blobs.get(healed.quarantined[keys.batch_name(0)]).body == body


def test_an_object_of_ours_with_damaged_bytes_is_a_conflict(two: FaultFleet) -> None:
    """Its metadata is ours, its bytes are not what the metadata says: it is moved and made anew."""
    batch = keys.batch_name(0)
    two.begin("damaged", 20, batch_size=20)
    two.wait_finished("damaged")
    before = two.blobs.get(completions("damaged"))
    ref = two.ledger.done("damaged")[batch]
    two.blobs.put(completions("damaged"), before.body[:-1], before.metadata)
    assert two.ledger.forget("damaged", batch, ref, counters(ref, {}))
    two.wait_finished("damaged")
    assert "conflict" in two.ledger.status("damaged").dead[batch]
    healed = reconcile(two.ledger, two.blobs, two.hints, "damaged", quarantine=True)
    assert list(healed.quarantined) == [batch]
    two.wait_finished("damaged")
    assert two.oracle("damaged").accepted == 20


def test_rejected_rows_that_are_lost_are_recorded_as_such(two: FaultFleet) -> None:
    """The commit is adopted; who is missing was rejected, only why is not known any more."""
    two.begin_from("unrecorded", with_one_too_long(two, "unrecorded", 20), batch_size=20)
    two.wait_finished("unrecorded")
    assert two.oracle("unrecorded").rejected == {"too_long": 1}
    ref = two.ledger.done("unrecorded")[keys.batch_name(0)]
    assert ref.rejected_key is not None
    two.blobs.delete(ref.rejected_key)
    asked = two.request_counts()
    assert two.ledger.forget("unrecorded", keys.batch_name(0), ref, counters(ref, {}))
    two.wait_finished("unrecorded")
    report = two.oracle("unrecorded")
    assert report.rejected == {"unrecorded": 1}
    assert two.ledger.status("unrecorded").counters["rejected_unrecorded"] == 1
    assert two.request_counts() == asked  # adopted, not generated again


def test_a_batch_of_rejected_prompts_commits_zero_rows(two: FaultFleet) -> None:
    two.set_faults(http_400=1.0)
    two.begin("all-bad", 20, batch_size=10)
    two.wait_finished("all-bad")
    two.set_faults()
    assert two.oracle("all-bad").rejected == {"refused_input": 20}
    record = read_run(two.blobs, "all-bad")
    for number in range(2):
        commit = commits.read_commit(
            two.blobs,
            "all-bad",
            keys.batch_name(number),
            record.fingerprint,
            set(range(number * 10, number * 10 + 10)),
        )
        assert commit.accepted == ()
        assert len(commit.reasons) == 10
