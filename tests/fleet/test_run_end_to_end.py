"""The main job on real workers: prompts in, committed batches on S3."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from celery import Celery

from dflashq.blobs import commits, runs
from dflashq.config import Settings
from dflashq.core import codec, keys
from dflashq.operations.monitoring.progress_object import read_progress
from dflashq.operations.runs import control
from tests.fleet.conftest import FleetFactory
from tests.support.engine_emulator import emulated_profile
from tests.support.fleet import FleetHarness, kept, kept_prompts, prompts_file, requests, wait_until
from tests.support.wait import WAIT_S

pytestmark = pytest.mark.fleet


def test_a_run_ends_with_every_prompt_in_one_place(
    emulated_fleet: FleetFactory, tmp_path: Path
) -> None:
    stats = tmp_path / "stats.jsonl"
    with emulated_fleet(lengths="fixed:40", stats_file=stats, token_ms=1) as fleet:
        record = fleet.enqueue("job", prompts_file(tmp_path / "p.jsonl", 60, turns=2))
        worker = fleet.start("w0")
        fleet.wait_finished("job")
        report = fleet.oracle("job")
        assert report.accepted == 60
        first = runs.batch_record(fleet.blobs, record, keys.batch_name(0))
        body = fleet.blobs.get(keys.completions_object("job", first.name)).body
        row = next(iter(codec.decode_rows(body)))
        assert [m["role"] for m in row["messages"]] == ["user", "assistant", "user", "assistant"]
        assert len(row["generations"]) == 2
        assert row["generations"][0]["output_ids"][-1] == row["generations"][0]["matched_id"]
        engine = json.loads(fleet.blobs.get(keys.engine_object("job", row["engine"])).body)
        assert engine["server_info"]["version"]
        wait_until(
            lambda: (read_progress(fleet.blobs, "job") or {}).get("finished") is True,
            "the run's last state is on S3, at once and without a monitor",
        )
        assert worker.stop() == 0
        fleet.assert_no_orphans()


def test_sigterm_hands_the_work_back_and_the_next_worker_finishes_it(
    emulated_fleet: FleetFactory, tmp_path: Path
) -> None:
    """What was finished is kept, the lease is free at once, nothing kept is generated again."""
    stats = tmp_path / "stats.jsonl"
    with emulated_fleet(lengths="uniform:20:400", token_ms=10, slots=8, stats_file=stats) as fleet:
        fleet.enqueue("drain", prompts_file(tmp_path / "p.jsonl", 40), batch_size=40)
        first = fleet.start("w0")
        wait_until(lambda: kept(fleet, "drain") >= 5, "five generations are kept")
        assert first.stop() == 0
        status = fleet.ledger.status("drain")
        assert status.pending == 1
        assert not status.leased
        assert not fleet.ledger.workers()
        held = kept_prompts(fleet, "drain")
        assert len(held) >= 5
        fleet.assert_no_orphans()
        fleet.start("w1")
        fleet.wait_finished("drain")
        fleet.oracle("drain")
        asked = requests(stats)
        assert len(asked) == 40
        assert {asked[prompt] for prompt in held} == {1}


def test_a_worker_answers_ping_while_it_generates(
    fast: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    profile = emulated_profile(tmp_path, model_dir=tiny_model, lengths="fixed:500", token_ms=20)
    with FleetHarness(fast, profile, tmp_path) as fleet:
        fleet.enqueue("ping", prompts_file(tmp_path / "p.jsonl", 40), batch_size=10)
        worker = fleet.start("w0")
        wait_until(
            lambda: fleet.ledger.workers()[worker.name]["in_flight"] > 0, "generations in flight"
        )
        with Celery(broker=fast.broker_url()) as app:
            replies = app.control.ping(destination=[worker.name], timeout=WAIT_S)
        assert replies == [{worker.name: {"ok": "pong"}}]


def test_pause_frees_the_leases_and_resume_goes_on(
    emulated_fleet: FleetFactory, tmp_path: Path
) -> None:
    with emulated_fleet(lengths="uniform:50:400", token_ms=10) as fleet:
        fleet.enqueue("held", prompts_file(tmp_path / "p.jsonl", 40), batch_size=20)
        fleet.start("w0")
        wait_until(lambda: kept(fleet, "held") >= 3, "something is kept")
        control.pause(fleet.ledger, fleet.blobs, "held", "a person looks at it")
        wait_until(lambda: not fleet.ledger.status("held").leased, "leases are free")
        status = fleet.ledger.status("held")
        assert status.pending == 2
        assert status.done == 0
        control.resume(fleet.ledger, fleet.blobs, fleet.hints, "held")
        fleet.wait_finished("held")
        fleet.oracle("held")


def test_bad_prompts_are_rejected_with_their_reason_and_the_batch_goes_on(
    emulated_fleet: FleetFactory, tmp_path: Path
) -> None:
    """Refused by the engine, too long, truncated: each counted, each kept to be read."""
    prompts = prompts_file(tmp_path / "p.jsonl", 60)
    long = {"messages": [{"role": "user", "content": "many words here " * 4000}]}
    prompts.write_text(prompts.read_text() + json.dumps(long) + "\n")
    with emulated_fleet(
        lengths="fixed:40",
        context_length=4096,
        faults={"http_400": 0.2, "truncated": 0.2, "nan": 0.1, "http_500": 0.1},
        sampling={"max_new_tokens": 512},
    ) as fleet:
        fleet.enqueue("bad", prompts, batch_size=20)
        fleet.start("w0")
        fleet.wait_finished("bad")
        report = fleet.oracle("bad")
        assert report.rejected["too_long"] == 1
        assert set(report.rejected) == {"too_long", "refused_input", "truncated", "corrupt"}
        assert report.accepted > 20
        ref = fleet.ledger.done("bad")[keys.batch_name(0)]
        rows = list(commits.rejected_rows(fleet.blobs, ref))
        assert all(row["reason"] and row["detail"] for row in rows)


def test_a_worker_whose_engine_cannot_start_says_why_and_takes_nothing(
    emulated_fleet: FleetFactory, tmp_path: Path
) -> None:
    with emulated_fleet(faults={"exit_at_start": "CUDA driver is too old"}) as fleet:
        fleet.enqueue("dark", prompts_file(tmp_path / "p.jsonl", 5))
        worker = fleet.start("w0", wait=False)
        assert worker.process.wait(WAIT_S) == 1
        assert "does not start" in worker.tail()
        assert "CUDA driver is too old" in worker.tail()
        assert fleet.ledger.status("dark").pending == 1
        assert fleet.hints.waiting(fleet.profile.queue) == 1


def test_the_wrong_engine_is_refused_with_both_values(emulated_fleet: FleetFactory) -> None:
    """MTP forgotten: the run does not begin."""
    with emulated_fleet(speculation="none", expect={"speculative_algorithm": "EAGLE"}) as fleet:
        worker = fleet.start("w0", wait=False)
        assert worker.process.wait(WAIT_S) == 1
        assert "EAGLE" in worker.tail()
        assert "--speculative-algorithm" in worker.tail()


def test_a_killed_worker_is_replaced_and_nothing_kept_is_generated_again(
    emulated_fleet: FleetFactory, tmp_path: Path
) -> None:
    stats = tmp_path / "stats.jsonl"
    with emulated_fleet(lengths="uniform:20:400", token_ms=10, stats_file=stats) as fleet:
        fleet.enqueue("killed", prompts_file(tmp_path / "p.jsonl", 40), batch_size=20)
        first, second = fleet.start("w0"), fleet.start("w1", wait=False)
        wait_until(lambda: kept(fleet, "killed") >= 8, "some generations are kept")
        held = kept_prompts(fleet, "killed")
        first.kill()
        second.wait_ready()
        fleet.wait_finished("killed")
        fleet.oracle("killed")
        asked = requests(stats)
        assert len(asked) == 40
        assert {asked[prompt] for prompt in held} == {1}
