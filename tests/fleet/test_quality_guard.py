"""A run that goes bad stops itself, with a sentence, before much is spent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import requests as http

from dflashq.config import Settings
from dflashq.core import codec, keys
from dflashq.core.model import Guard, RetryStep
from dflashq.operations.runs import control
from tests.fleet.conftest import FleetFactory
from tests.support.engine_emulator import emulated_profile, is_emulator
from tests.support.fleet import FleetHarness, WorkerHandle, prompts_file, requests, wait_until
from tests.support.wait import WAIT_S

pytestmark = pytest.mark.fleet


def test_an_engine_that_returns_stubs_costs_a_canary_and_no_more(
    emulated_fleet: FleetFactory, tmp_path: Path
) -> None:
    """87 % stubs: the disaster behind this product. A person may still take it as it is."""
    stats = tmp_path / "stats.jsonl"
    with emulated_fleet(lengths="fixed:60", stats_file=stats, faults={"stub": 0.87}) as fleet:
        fleet.enqueue(
            "stubs", prompts_file(tmp_path / "p.jsonl", 400), batch_size=50, guard=Guard()
        )
        fleet.start("w0")
        wait_until(lambda: fleet.ledger.state("stubs") == "paused", "the run pauses itself")
        assert sum(requests(stats).values()) <= 50
        status = fleet.ledger.status("stubs")
        assert status.done == 1
        for words in ("canary", "no_answer", "%", "index ", "resume stubs --accept"):
            assert words in status.reason
        assert fleet.hints.waiting(fleet.profile.queue) == 0
        control.resume(fleet.ledger, fleet.blobs, fleet.hints, "stubs")
        wait_until(lambda: fleet.ledger.state("stubs") == "paused", "it pauses again")
        assert sum(requests(stats).values()) <= 50
        control.resume(fleet.ledger, fleet.blobs, fleet.hints, "stubs", accept=True)
        fleet.wait_finished("stubs")
        report = fleet.oracle("stubs")
        assert report.rejected["no_answer"] > 300


def test_a_run_that_goes_bad_later_is_paused_by_its_window(
    emulated_fleet: FleetFactory, tmp_path: Path
) -> None:
    guard = Guard(canary=0, max_rejected=0.2, window=50)
    with emulated_fleet(
        lengths="fixed:60", faults={"truncated": 0.5}, sampling={"max_new_tokens": 200}
    ) as fleet:
        fleet.enqueue("late", prompts_file(tmp_path / "p.jsonl", 600), batch_size=100, guard=guard)
        fleet.start("w0")
        wait_until(lambda: fleet.ledger.state("late") == "paused", "the run pauses itself")
        reason = fleet.ledger.status("late").reason
        for words in ("rejected, at most 20%", "truncated", "index ", "--accept"):
            assert words in reason
        control.resume(fleet.ledger, fleet.blobs, fleet.hints, "late", accept=True)
        fleet.wait_finished("late")
        fleet.oracle("late")


def test_a_good_canary_lets_the_others_go(emulated_fleet: FleetFactory, tmp_path: Path) -> None:
    with emulated_fleet(lengths="fixed:60", token_ms=2) as fleet:
        fleet.enqueue("good", prompts_file(tmp_path / "p.jsonl", 200), batch_size=50, guard=Guard())
        assert fleet.ledger.status("good").waits_for == "batch-000000"
        assert fleet.hints.waiting(fleet.profile.queue) == 1
        fleet.start("w0")
        fleet.wait_finished("good")
        report = fleet.oracle("good")
        assert report.accepted == 200
        assert fleet.ledger.waits_for("good") == ""


def test_the_ladder_draws_again_and_says_so_in_the_row(
    emulated_fleet: FleetFactory, tmp_path: Path
) -> None:
    """Answers of 50 to 400 ids under a limit of 200, with one retry of up to 512."""
    stats = tmp_path / "stats.jsonl"
    with emulated_fleet(lengths="uniform:50:400", stats_file=stats) as fleet:
        fleet.enqueue(
            "ladder",
            prompts_file(tmp_path / "p.jsonl", 40),
            batch_size=40,
            ladder=(RetryStep(reasons=("truncated",), max_new_tokens=512),),
            max_new_tokens=200,
        )
        fleet.start("w0")
        fleet.wait_finished("ladder")
        report = fleet.oracle("ladder")
        assert report.accepted == 40
        body = fleet.blobs.get(keys.completions_object("ladder", keys.batch_name(0))).body
        rows = list(codec.decode_rows(body))
        retried = [row for row in rows if row["retries"]]
        assert 5 < len(retried) < 35
        for row in rows:
            longer = len(row["generations"][0]["output_ids"]) > 200
            assert longer == bool(row["retries"])
        assert json.loads(retried[0]["retries"]) == [
            {"turn": 0, "reason": "truncated", "detail": "cut at max_new_tokens = 200"}
        ]
        assert sum(requests(stats).values()) == 40 + len(retried)


def test_an_engine_of_nans_is_refused_at_its_start_and_stopped_later(
    fast: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    """It may go bad in the middle: then the canary's verdict is corrupt, and the run is paused."""
    stats = tmp_path / "stats.jsonl"
    profile = emulated_profile(tmp_path, model_dir=tiny_model, lengths="fixed:60", stats_file=stats)
    (tmp_path / "nan").mkdir()
    nan = emulated_profile(tmp_path / "nan", model_dir=tiny_model, faults={"nan": 1.0})
    with FleetHarness(fast, profile, tmp_path) as fleet:
        refused = WorkerHandle(fast, nan, "w1", tmp_path / "w1.log")
        assert refused.process.wait(WAIT_S) == 1
        assert "NaN happened" in refused.tail()
        worker = fleet.start("w0")
        set_faults(worker, nan=0.9)
        fleet.enqueue("nan", prompts_file(tmp_path / "p.jsonl", 200), batch_size=50, guard=Guard())
        wait_until(lambda: fleet.ledger.state("nan") == "paused", "the run pauses itself")
        assert "corrupt" in fleet.ledger.status("nan").reason
        assert sum(requests(stats).values()) <= 50


def test_an_engine_that_aborts_with_200_is_sick_and_spends_no_canary(
    fast: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    """An abort is no sample, and one of everything is no prompt's fault: the run waits for it."""
    once = fast.model_copy(update={"attempts": 1})
    profile = emulated_profile(tmp_path, model_dir=tiny_model, lengths="fixed:20")
    with FleetHarness(once, profile, tmp_path) as fleet:
        worker = fleet.start("w0")
        set_faults(worker, abort=1.0)
        fleet.enqueue("abort", prompts_file(tmp_path / "p.jsonl", 30), batch_size=10, guard=Guard())

        def sick() -> str:
            return str(fleet.ledger.workers()[worker.name]["sick"])

        wait_until(lambda: "the engine aborted the request" in sick(), "the engine is sick")
        status = fleet.ledger.status("abort")
        assert (status.done, status.dead, status.waits_for) == (0, {}, "batch-000000")
        set_faults(worker, abort=0.0)
        fleet.wait_finished("abort")
        assert fleet.oracle("abort").accepted == 30


def test_rows_are_written_at_once_where_it_is_asked_for(
    fast: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    rows_too = fast.model_copy(update={"rows_at_once": True})
    profile = emulated_profile(tmp_path, model_dir=tiny_model, lengths="fixed:60")
    with FleetHarness(rows_too, profile, tmp_path) as fleet:
        fleet.enqueue("rows", prompts_file(tmp_path / "p.jsonl", 20), batch_size=10)
        fleet.start("w0")
        fleet.wait_finished("rows")
        wanted = {keys.rows_object("rows", keys.batch_name(number)) for number in range(2)}
        prefix = keys.run_prefix("rows")
        wait_until(lambda: wanted <= set(fleet.blobs.list(prefix)), "both have their rows")


def set_faults(worker: WorkerHandle, **faults: float) -> None:
    """Dial the faults of the engine that a worker owns."""
    engine = next(p for p in worker.family() if is_emulator(p))
    command = engine.cmdline()
    port = command[command.index("--port") + 1]
    reply = http.post(f"http://127.0.0.1:{port}/faults", json=faults, timeout=WAIT_S)
    assert reply.status_code == 200, reply.text
