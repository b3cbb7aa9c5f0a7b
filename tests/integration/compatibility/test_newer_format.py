"""Runs and objects of a newer version: read where that is safe, else refused with what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from dflashq.blobs import commits, runs
from dflashq.blobs.s3 import Blobs, make_client
from dflashq.config import Settings
from dflashq.core import codec, keys, schema
from dflashq.core.errors import NewerFormatError
from dflashq.core.model import ObjectRef, RunRecord
from dflashq.ledger import Lease, Ledger
from tests.support.committed_runs import CommittedRunFixture
from tests.support.engine_emulator import emulated_profile
from tests.support.fleet import FleetHarness, prompts_file
from tests.support.golden_run import read_redis
from tests.support.wait import wait_until

RUN, BATCH = "r", keys.batch_name(0)
REFUSED = "format version 2.*pip install -U dflashq"


@pytest.fixture
def fleet(settings: Settings, blobs: Blobs, tmp_path: Path) -> CommittedRunFixture:
    return CommittedRunFixture(settings, blobs, tmp_path)


@pytest.fixture
def record(fleet: CommittedRunFixture) -> RunRecord:
    return fleet.enqueue(RUN).record


def set_run_version(settings: Settings, run: str, version: str) -> None:
    client = redis.Redis.from_url(settings.broker_url())
    client.hset(keys.redis_run(run, "run"), "schema", version)


def set_object_version(settings: Settings, key: str, version: str | None) -> None:
    """The same object, as another version of dflashq would have written it."""
    client, place = make_client(settings), f"{settings.s3_prefix}{key}"
    stored = client.get_object(Bucket=settings.s3_bucket, Key=place)
    metadata = dict(stored["Metadata"])
    del metadata[schema.METADATA_KEY]
    if version is not None:
        metadata[schema.METADATA_KEY] = version
    body = stored["Body"].read()
    client.put_object(Bucket=settings.s3_bucket, Key=place, Body=body, Metadata=metadata)


LEASE = Lease(RUN, BATCH, "1-x", "w", 0)
REF = ObjectRef(keys.completions_object(RUN, BATCH), "0" * 64, "f")
VERBS: dict[str, Callable[[Ledger], Any]] = {
    "add": lambda ledger: ledger.add(RUN, [keys.batch_name(9)]),
    "adopt": lambda ledger: ledger.adopt(RUN, BATCH, REF, {}),
    "begin": lambda ledger: ledger.begin(LEASE),
    "complete": lambda ledger: ledger.complete(LEASE, REF, {}),
    "expire": lambda ledger: ledger.expire(RUN),
    "fail": lambda ledger: ledger.fail(LEASE, "x"),
    "forget": lambda ledger: ledger.forget(RUN, BATCH, REF, {}),
    "keep": lambda ledger: ledger.keep(LEASE, [("0:v", b"x")]),
    "kill": lambda ledger: ledger.kill(LEASE, "x"),
    "pause_at_canary": lambda ledger: ledger.pause_at_canary(RUN, "done", "x"),
    "register": lambda ledger: ledger.register(RUN, "f", "q", 1, 1),
    "release": lambda ledger: ledger.release(LEASE, "x"),
    "release_canary": lambda ledger: ledger.release_canary(RUN),
    "renew": lambda ledger: ledger.renew(RUN, [LEASE], 30.0),
    "revive": lambda ledger: ledger.revive(RUN, "x"),
    "state": lambda ledger: ledger.set_state(RUN, "cancelled", "x"),
    "status": lambda ledger: ledger.status(RUN),
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_touches_a_run_of_a_newer_version(
    fleet: CommittedRunFixture, record: RunRecord, verb: str
) -> None:
    set_run_version(fleet.settings, RUN, "2")
    before = read_redis(fleet.settings)
    with pytest.raises(NewerFormatError, match=f"run 'r' in Redis has the {REFUSED}"):
        VERBS[verb](fleet.ledger)
    assert read_redis(fleet.settings) == before


def test_a_run_of_a_newer_version_is_left_to_newer_workers(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    set_run_version(fleet.settings, RUN, "2")
    claim = fleet.ledger.claim(RUN, "", "w", 30.0)
    assert (claim.lease, claim.why) == (None, "newer format")


@pytest.mark.parametrize("version", ["1", "1.3"])
def test_a_run_of_our_major_version_is_worked_on(
    fleet: CommittedRunFixture, record: RunRecord, version: str
) -> None:
    set_run_version(fleet.settings, RUN, version)
    assert fleet.ledger.claim(RUN, BATCH, "w", 30.0).lease is not None
    assert fleet.ledger.status(RUN).leased


def test_loops_over_all_runs_do_not_meet_a_run_of_a_newer_version(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    """One newer run kept every older worker from booting, and would stop the monitor."""
    fleet.enqueue("own")
    assert list(fleet.ledger.runs()) == [RUN, "own"]
    set_run_version(fleet.settings, RUN, "2")
    assert list(fleet.ledger.runs()) == ["own"]


def test_a_run_is_registered_with_the_version(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    row = read_redis(fleet.settings)[keys.redis_run(RUN, "run")]["value"]
    assert row["schema"] == str(schema.VERSION)


def test_every_object_carries_the_version_and_is_read_without_it(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    fleet.commit(record, BATCH, range(3), {3: "stub", 4: "empty"})
    runs.write_state(fleet.blobs, RUN, "paused", "x")
    client = make_client(fleet.settings)
    found = list(fleet.blobs.list(""))
    assert len(found) >= 6
    for key in found:
        place = f"{fleet.settings.s3_prefix}{key}"
        head = client.head_object(Bucket=fleet.settings.s3_bucket, Key=place)
        assert head["Metadata"][schema.METADATA_KEY] == str(schema.VERSION)
        set_object_version(fleet.settings, key, None)
    assert runs.read_run(fleet.blobs, RUN) == record
    indexes = set(range(5))
    commit = commits.read_commit(fleet.blobs, RUN, BATCH, record.fingerprint, indexes)
    assert commit.accepted == (0, 1, 2)


@pytest.mark.parametrize("version", ["2", "2.1"])
def test_an_object_of_a_newer_version_is_refused(
    fleet: CommittedRunFixture, record: RunRecord, version: str
) -> None:
    ref = fleet.commit(record, BATCH, range(5))
    readers: dict[str, Callable[[], object]] = {
        keys.run_json(RUN): lambda: runs.read_run(fleet.blobs, RUN),
        record.batches[0].key: lambda: runs.read_prompts(fleet.blobs, record.batches[0]),
        ref.key: lambda: commits.read_reference(fleet.blobs, RUN, BATCH, record.fingerprint),
    }
    for key, read in readers.items():
        read()
        set_object_version(fleet.settings, key, version)
        with pytest.raises(NewerFormatError, match=rf"{key} has the format version {version}"):
            read()


@pytest.mark.fleet
def test_a_worker_leaves_newer_runs_to_others_and_does_its_own(
    settings: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    """No attempt is spent on them: a batch that an older worker cannot read must not die of it."""
    fast = settings.model_copy(update={"lease_ttl_s": 3.0, "sweep_s": 0.3, "attempts": 1})
    profile = emulated_profile(tmp_path, model_dir=tiny_model, lengths="fixed:40")
    prompts = prompts_file(tmp_path / "p.jsonl", 8)
    with FleetHarness(fast, profile, tmp_path) as fleet:
        fleet.enqueue("newer-ledger", prompts)
        set_run_version(fast, "newer-ledger", "2")
        newer = fleet.enqueue("newer-prompts", prompts)
        set_object_version(fast, newer.batches[0].key, "2")
        fleet.enqueue("own", prompts)
        worker = fleet.start("w0")
        fleet.wait_finished("own")
        wait_until(lambda: "newer-prompts" in (worker.row() or {}).get("refuses", ()), "a refusal")
        fleet.wait_announced(3)
        assert not fleet.ledger.status("newer-prompts").dead
        assert [b.state for b in fleet.ledger.batch_states("newer-prompts")] == ["pending"]
        assert fleet.ledger.pending("newer-ledger") == [BATCH]
        set_object_version(fast, newer.batches[0].key, "1")
        worker.stop()
        fleet.start("w1")
        fleet.wait_finished("newer-prompts")
        fleet.oracle("newer-prompts")


def test_prompts_with_a_field_of_a_newer_version_are_read(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    batch = record.batches[0]
    rows = [{**row, "newer": [1]} for row in codec.decode_rows(fleet.blobs.get(batch.key).body)]
    body = codec.encode_rows(rows)
    fleet.blobs.put(batch.key, body)
    changed = type(batch).from_json({**batch.to_json(), "sha256": codec.sha256(body)})
    assert len(runs.read_prompts(fleet.blobs, changed)) == batch.prompts
