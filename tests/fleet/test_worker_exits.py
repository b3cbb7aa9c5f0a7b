"""A worker that cannot go on says so by its exit code, and hands its batches back first."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from celery import Celery

from dflashq.config import Settings
from dflashq.core import keys
from tests.support.engine_emulator import emulated_profile, is_emulator
from tests.support.fault_fleet import engine_of, engine_port, set_engine_faults
from tests.support.fleet import FleetHarness, WorkerHandle, kept, prompts_file, wait_until
from tests.support.wait import WAIT_S

pytestmark = pytest.mark.fleet


def test_an_engine_that_dies_too_often_ends_the_worker_with_70(
    fast: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    budget = fast.model_copy(update={"engine_restarts": 1})
    profile = emulated_profile(
        tmp_path, model_dir=tiny_model, lengths="fixed:400", token_ms=10, slots=4
    )
    with FleetHarness(budget, profile, tmp_path) as fleet:
        fleet.enqueue("lost", prompts_file(tmp_path / "p.jsonl", 40), batch_size=40)
        worker = fleet.start("w0")
        for deaths in (1, 2):
            wait_until(lambda: bool(engines(worker.process.pid)), "an engine runs")
            engine = engines(worker.process.pid)[0]
            os.kill(engine.pid, signal.SIGKILL)
            wait_until(lambda p=engine: not p.is_running(), f"death {deaths}")
        assert worker.process.wait(WAIT_S) == 70
        status = fleet.ledger.status("lost")
        assert not status.leased
        assert status.pending == 1
        # One for the batch at least: one too many finds nothing to claim.
        assert fleet.hints.waiting(fleet.profile.queue) >= 1
        assert "died 2 times within an hour" in worker.tail(80)
        fleet.assert_no_orphans()


def test_a_consumer_that_takes_no_hints_ends_the_worker_with_75(
    fast: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    impatient = fast.model_copy(update={"consumer_patience_s": 2.0, "concurrency": 2})
    profile = emulated_profile(tmp_path, model_dir=tiny_model, lengths="fixed:300", token_ms=10)
    with FleetHarness(impatient, profile, tmp_path) as fleet:
        fleet.enqueue("deaf", prompts_file(tmp_path / "a.jsonl", 20), batch_size=20)
        worker = fleet.start("w0")
        wait_until(lambda: kept(fleet, "deaf") > 0, "the first batch is at work")
        with Celery(broker=fast.broker_url()) as app:
            app.control.cancel_consumer(fleet.profile.queue, destination=[worker.name], reply=True)
        fleet.enqueue("waits", prompts_file(tmp_path / "b.jsonl", 20), batch_size=20)
        assert worker.process.wait(WAIT_S) == 75
        assert not fleet.ledger.status("deaf").leased
        assert "the consumer has taken no hint" in worker.tail(80)
        fleet.assert_no_orphans()
        fleet.workers.clear()
        fleet.start("w1")
        for run in ("deaf", "waits"):
            fleet.wait_finished(run)
            fleet.oracle(run)


def engines(worker: int) -> list[psutil.Process]:
    """The emulated engines below a worker."""
    below = psutil.Process(worker).children(recursive=True)
    return [p for p in below if is_emulator(p)]


def test_an_engine_of_another_truth_does_not_answer_for_the_run(
    fast: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    """The first engine decides; a host with other weights leaves the run alone, and says so."""
    few = {"token_ms": 5, "lengths": "fixed:100", "slots": 2, "launch": {"stall_s": 10 * WAIT_S}}
    profile = emulated_profile(
        tmp_path, model_dir=tiny_model, server_info={"dtype": "bfloat16"}, **few
    )
    folder = tmp_path / "other"
    folder.mkdir()
    other = emulated_profile(folder, model_dir=tiny_model, server_info={"dtype": "fp8"}, **few)
    with FleetHarness(fast, profile, tmp_path) as fleet:
        first = fleet.start("w0")
        engine = engine_of(first)
        assert engine is not None
        set_engine_faults(
            engine_port(engine), {"hang": True}
        )  # there is work left when the other one comes
        # More batches than one worker holds.
        fleet.enqueue("true", prompts_file(tmp_path / "p.jsonl", 60), batch_size=2)
        truth = keys.truth_json("true")
        wait_until(lambda: truth in fleet.blobs.list("runs/true/"), "the run has its first engine")
        foreign = WorkerHandle(fast, other, "w1", tmp_path / "w1.log")
        fleet.workers.append(foreign)
        foreign.wait_ready()
        wait_until(
            lambda: "this engine must not answer for run 'true'" in foreign.log.read_text(),
            "the other engine is refused",
        )
        set_engine_faults(engine_port(engine), {"hang": False})
        assert "dtype: the run has 'bfloat16', this engine 'fp8'" in foreign.log.read_text()
        fleet.wait_finished("true")
        fleet.oracle("true")
        assert "batch done" not in foreign.log.read_text()
