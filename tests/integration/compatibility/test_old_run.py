"""What an earlier version left behind is resumed, verified and exported by this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflashq.blobs import commits, runs
from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core import codec, keys
from dflashq.ledger import Hints, Lease, Ledger
from dflashq.operations.export.export import Request, export
from dflashq.operations.export.targets import open_target
from dflashq.operations.results.rows import make_rows
from dflashq.operations.results.samples import samples, snapshot
from dflashq.operations.results.verify import verify
from dflashq.operations.runs.backfill import revive
from dflashq.operations.runs.manifest import read_manifest
from dflashq.operations.runs.reconcile import reconcile
from tests.support import golden_run
from tests.support.fleet import FleetHarness, kept_prompts, requests
from tests.support.golden_run import DEAD_BATCH, FINISHED, HALF_DONE, KEPT_BATCH
from tests.support.wait import wait_until


@pytest.fixture
def old(settings: Settings) -> Settings:
    """Settings that lead to a Redis and an S3 as the earlier version left them."""
    golden_run.load(settings, golden_run.OLD_RUN)
    return settings.model_copy(update={"lease_ttl_s": 3.0, "sweep_s": 0.3, "drain_grace_s": 1.0})


def exported(settings: Settings, run: str, folder: Path, form: str) -> int:
    """How many rows an export has."""
    target = open_target(str(folder / form), settings)
    return export(Blobs(settings), target, Request(run, form), lambda *_: None).rows


@pytest.mark.fleet
def test_workers_finish_what_an_earlier_version_began(old: Settings, tmp_path: Path) -> None:
    """Nothing that was kept is generated again, and what was committed stays as it is."""
    stats = tmp_path / "stats.jsonl"
    profile = golden_run.golden_profile(tmp_path, stats)
    with FleetHarness(old, profile, tmp_path) as fleet:
        done = fleet.ledger.done(HALF_DONE)
        kept = fleet.ledger.kept(Lease(HALF_DONE, KEPT_BATCH, "", "", 0))
        held = kept_prompts(fleet, HALF_DONE)
        assert len(held) == len(kept.generations) >= 3
        assert kept.strikes
        assert not kept.damaged
        assert revive(fleet.ledger, fleet.hints, HALF_DONE).revived == [DEAD_BATCH]
        fleet.start("new")
        fleet.wait_finished(HALF_DONE)
        report = fleet.oracle(HALF_DONE)
        assert report.prompts == golden_run.PROMPTS
        assert not held & requests(stats).keys()
        assert done.items() <= fleet.ledger.done(HALF_DONE).items()
        ref = fleet.ledger.done(HALF_DONE)[KEPT_BATCH]
        rows = {row["index"]: row for row in commits.accepted_rows(fleet.blobs, ref)}
        rows |= {row["index"]: row for row in commits.rejected_rows(fleet.blobs, ref)}
        for (index, turn), generation in kept.generations.items():
            row = rows[index]["generations"][turn]
            assert row["output_ids"] == list(generation.output_ids)
            assert row["engine"] == generation.engine
        wait_until(lambda: read_manifest(fleet.blobs, HALF_DONE) is not None, "a manifest")
        assert make_rows(fleet.blobs, HALF_DONE, lambda *_: None).there == len(done)
        accepted = samples(fleet.blobs, snapshot(fleet.blobs, HALF_DONE))
        turns = sum(len(row["generations"]) for row in accepted)
        assert turns > report.accepted
        for form in ("parquet", "conversations"):
            assert exported(old, HALF_DONE, tmp_path, form) == turns


def test_a_finished_run_is_proven_and_exported(old: Settings, tmp_path: Path) -> None:
    blobs = Blobs(old)
    report = verify(blobs, FINISHED)
    assert report.clean
    assert report.rejected == {"too_long": 1}
    assert report.accepted == 5
    assert exported(old, FINISHED, tmp_path, "conversations") == 5
    made = make_rows(blobs, FINISHED, lambda *_: None)
    assert (made.there, made.written) == (1, 0)


def test_a_lost_ledger_is_rebuilt_from_the_objects(old: Settings) -> None:
    """Without its Redis: the run, its state, its done-set and its counters come from S3."""
    ledger, blobs, hints = Ledger(old), Blobs(old), Hints(old)
    done, counters = ledger.done(HALF_DONE), ledger.status(HALF_DONE).counters
    golden_run.clear_redis(old)
    result = reconcile(ledger, blobs, hints, HALF_DONE)
    assert not result.conflicts
    assert ledger.done(HALF_DONE) == done
    rebuilt = ledger.status(HALF_DONE).counters
    assert {name: n for name, n in rebuilt.items() if n} == {
        name: n for name, n in counters.items() if n
    }
    assert ledger.pending(HALF_DONE) == [DEAD_BATCH, KEPT_BATCH, keys.batch_name(5)]


def test_the_same_prompts_continue_the_old_run(old: Settings, tmp_path: Path) -> None:
    """Their objects, their order and the fingerprint come out as they did."""
    blobs = Blobs(old)
    record = runs.read_run(blobs, HALF_DONE)
    prompts = {batch.name: blobs.get(batch.key).body for batch in record.batches}
    with FleetHarness(old, golden_run.golden_profile(tmp_path), tmp_path) as fleet:
        assert golden_run.enqueue_half_done(fleet, tmp_path) == record
    for batch in record.batches:
        assert codec.sha256(prompts[batch.name]) == batch.sha256
        assert blobs.get(batch.key).body == prompts[batch.name]
    assert HALF_DONE in Ledger(old).runs()
