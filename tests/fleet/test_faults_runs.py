"""Poison, and what a person does to a run: one bad run never blocks another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflashq.blobs import commits
from dflashq.core import codec, keys
from dflashq.core.errors import DflashqError
from dflashq.operations.runs import control
from dflashq.operations.runs.backfill import rerun_rejected, revive
from tests.fleet.conftest import POISON
from tests.support.fault_fleet import FaultFleet
from tests.support.fleet import wait_until

pytestmark = pytest.mark.fleet


def with_poison(fault_fleet: FaultFleet, run: str, prompts: int, poisoned: tuple[int, ...]) -> Path:
    """A prompt file of which some kill the engine that runs them."""
    rows = [
        {"id": f"p{n}", "messages": [{"role": "user", "content": f"{run}: what is {n}?"}]}
        for n in range(prompts)
    ]
    for number in poisoned:
        rows[number]["messages"] = [{"role": "user", "content": f"x{POISON} x {run} {number}"}]
    path = fault_fleet.folder / f"{run}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_poison_prompt_is_rejected_the_innocents_are_kept_and_the_fleet_lives(
    two: FaultFleet,
) -> None:
    workers = {name: worker.process.pid for name, worker in two.named.items()}
    two.begin_from("poison", with_poison(two, "poison", 60, (7,)), batch_size=30)
    two.begin("healthy", 60, batch_size=30)
    two.wait_finished("poison")
    two.wait_finished("healthy")
    assert two.oracle("poison").rejected == {"engine_crash": 1}
    assert two.oracle("healthy").accepted == 60
    ref = two.ledger.done("poison")[keys.batch_name(0)]
    rows = list(commits.rejected_rows(two.blobs, ref))
    assert [row["index"] for row in rows] == [7]
    assert all("nothing else in flight" in row["detail"] for row in rows)
    assert {name: worker.process.pid for name, worker in two.named.items()} == workers
    assert all(worker.process.poll() is None for worker in two.named.values())
    assert all(b.attempts == 1 for b in two.ledger.batch_states("poison"))


def test_a_poison_batch_is_dead_with_its_story_and_lives_again_once_mended(two: FaultFleet) -> None:
    """Its prompts object is gone: no attempt can succeed, another run goes on unhindered."""
    control_run = "unhindered"
    with two.stopped():  # nobody reads the object before it is gone
        two.begin(control_run, 60, batch_size=20)
        record = two.begin("sick", 60, batch_size=20)
        lost = record.batches[1]
        body = two.blobs.get(lost.key)
        two.blobs.delete(lost.key)
    two.wait_finished("sick")
    two.wait_finished(control_run)
    assert two.oracle(control_run).accepted == 60
    status = two.ledger.status("sick")
    assert list(status.dead) == [lost.name]
    assert lost.key in status.dead[lost.name]
    story = [row["what"] for row in two.ledger.story("sick", lost.name)]
    assert len(story) == two.settings.attempts
    assert status.done == 2
    two.blobs.put(lost.key, body.body, body.metadata)
    assert revive(two.ledger, two.hints, "sick").revived == [lost.name]
    two.wait_finished("sick")
    assert two.oracle("sick").accepted == 60


def test_a_damaged_prompts_object_is_not_answered(two: FaultFleet) -> None:
    """Other prompts than the recorded ones: refused at once, mended by its old bytes."""
    record = two.begin("bitrot", 20, batch_size=20)
    object_ = record.batches[0]
    two.wait_finished("bitrot")
    ref = two.ledger.done("bitrot")[object_.name]
    two.blobs.delete(ref.key)
    before = two.blobs.get(object_.key)
    other = codec.compress(codec.decompress(before.body).replace(b"what is", b"what was"))
    two.blobs.put(object_.key, other, before.metadata)
    asked = two.request_counts()
    assert two.ledger.forget("bitrot", object_.name, ref, ref.counts)
    two.wait_finished("bitrot")
    assert "is damaged" in two.ledger.status("bitrot").dead[object_.name]
    assert two.request_counts() == asked
    two.blobs.put(object_.key, before.body, before.metadata)
    revive(two.ledger, two.hints, "bitrot")
    two.wait_finished("bitrot")
    assert two.oracle("bitrot").accepted == 20


def test_pause_resume_and_cancel_act_on_work_under_way(two: FaultFleet) -> None:
    two.set_faults(slow=4.0)
    two.begin("stopped", 160, batch_size=20)
    held = two.wait_kept("stopped", 10)
    control.pause(two.ledger, two.blobs, "stopped", "a person looks at it")
    wait_until(lambda: not two.ledger.status("stopped").leased, "leases are free")
    kept = set[str]().union(*two.kept("stopped").values())
    assert held <= kept or two.ledger.status("stopped").done
    two.wait_announced(1)  # a request that was being sent as its lease ended is out by now
    asked = two.request_counts()
    two.wait_announced(3)
    assert two.request_counts() == asked
    control.resume(two.ledger, two.blobs, two.hints, "stopped")
    wait_until(lambda: bool(two.ledger.status("stopped").leased), "it goes on")
    two.set_faults()
    wait_until(lambda: two.ledger.status("stopped").done >= 2, "two batches are committed")
    two.set_faults(slow=4.0)
    control.cancel(two.ledger, two.blobs, "stopped", "enough")
    wait_until(lambda: not two.ledger.status("stopped").leased, "leases are free")
    status = two.ledger.status("stopped")
    assert status.finished
    assert status.kept_bytes == 0
    for ref in two.ledger.done("stopped").values():
        assert two.blobs.head(ref.key) is not None
    asked = two.request_counts()
    assert {asked[prompt] for prompt in kept} <= {0, 1}
    with pytest.raises(DflashqError, match="stays so"):
        control.resume(two.ledger, two.blobs, two.hints, "stopped")


def test_rejected_prompts_are_run_again_only_when_asked_and_only_once(two: FaultFleet) -> None:
    two.set_faults(truncated=0.4)
    prompts = two.folder / "tombs.jsonl"
    record = two.begin("tombs", 60, batch_size=20, max_new_tokens=400)
    two.wait_finished("tombs")
    two.set_faults()
    first = two.oracle("tombs")
    truncated = first.rejected["truncated"]
    assert 5 < truncated < 55
    asked = two.request_counts()
    # The same run again, and a resume: a rejected prompt has its verdict.
    two.begin_from("tombs", prompts, batch_size=20, max_new_tokens=400)
    control.resume(two.ledger, two.blobs, two.hints, "tombs")
    wait_until(lambda: two.hints.waiting(two.profile.queue) == 0, "no hint is left")
    assert two.ledger.status("tombs").finished
    assert two.request_counts() == asked
    # Another reason than theirs: nothing. Theirs: a revision, once.
    assert not rerun_rejected(two.ledger, two.blobs, two.hints, "tombs", "looping").revisions
    result = rerun_rejected(two.ledger, two.blobs, two.hints, "tombs", "truncated")
    assert result.prompts == truncated
    assert not rerun_rejected(two.ledger, two.blobs, two.hints, "tombs", "truncated").revisions
    revisions = set(result.revisions)
    wait_until(lambda: revisions <= set(two.ledger.done("tombs")), "the revisions are done")
    report = two.oracle("tombs")
    assert report.accepted == record.prompts
    assert not report.rejected
    again = two.request_counts() - asked
    assert sum(again.values()) == truncated
    assert set(again.values()) == {1}
    assert not rerun_rejected(two.ledger, two.blobs, two.hints, "tombs", None).revisions
