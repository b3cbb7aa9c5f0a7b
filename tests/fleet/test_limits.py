"""Out of descriptors: refused at boot with the numbers, outlived or handed back at work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dflashq.config import Settings
from dflashq.embedded.redis import EmbeddedRedis
from tests.support.engine_emulator import emulated_profile
from tests.support.env import environment
from tests.support.fleet import (
    ROOT,
    FleetHarness,
    WorkerHandle,
    kept,
    kept_prompts,
    prompts_file,
    requests,
)
from tests.support.wait import WAIT_S, wait_until

pytestmark = pytest.mark.fleet


def refused(settings: Settings, profile: Path, log: Path, limit: int) -> tuple[int, str]:
    """A worker under `ulimit -n`; its exit code and its log."""
    words = f'ulimit -n {limit} && exec "$@"'
    command = [
        *("bash", "-c", words, "bash", sys.executable, "-m", "celery", "-A", "workers", "worker"),
        *("-n", "w0@test", "--profile", str(profile), "--without-gossip", "--without-mingle"),
    ]
    with log.open("wb") as out:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment(settings),
            stdout=out,
            stderr=subprocess.STDOUT,
            timeout=WAIT_S,
            check=False,
        )
    return done.returncode, log.read_text(errors="replace")


def test_a_worker_with_too_few_descriptors_does_not_start(
    fast: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    """200 slots under `ulimit -n 128`: known from the profile, so no engine is started."""
    stats = tmp_path / "stats.jsonl"
    profile = emulated_profile(tmp_path, model_dir=tiny_model, slots=200, stats_file=stats)
    code, output = refused(fast, profile, tmp_path / "w0.log", 128)
    assert code == 2, output
    assert "250 generations in flight" in output
    assert "128 are granted" in output
    assert "ulimit -n" in output
    assert not stats.exists(), "the engine was not started"


def test_an_engine_with_more_slots_than_descriptors_ends_the_worker_with_2(
    fast: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    """The profile does not tell; the engine does, and no prompt is sent to it."""
    stats = tmp_path / "stats.jsonl"
    profile = emulated_profile(
        tmp_path, model_dir=tiny_model, slots=400, stats_file=stats, expect={}
    )
    with FleetHarness(fast, profile, tmp_path) as fleet:
        fleet.enqueue("few", prompts_file(tmp_path / "p.jsonl", 8))
        code, output = refused(fast, profile, tmp_path / "w0.log", 256)
        assert code == 2, output
        assert "500 generations in flight" in output
        assert "256 are granted" in output
        assert not requests(stats)
        assert not fleet.ledger.status("few").leased


def limit_files(worker: WorkerHandle, soft: int) -> int:
    """Change the soft limit of a running worker, from outside; what it was."""
    process = psutil.Process(worker.process.pid)
    before, hard = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
    return before


def run_out(worker: WorkerHandle, redis: EmbeddedRedis) -> int:
    """Not one more file can be opened, and every connection to Redis is lost; what it was."""
    before = limit_files(worker, 3)
    with redis.client(0) as admin:
        admin.client_kill_filter(_type="normal", skipme=True)
    wait_until(lambda: "Too many open files" in log_of(worker), "it has run out")
    return before


def log_of(worker: WorkerHandle) -> str:
    return worker.log.read_text(errors="replace")


@pytest.fixture
def stats(tmp_path: Path) -> Path:
    return tmp_path / "stats.jsonl"


@pytest.fixture
def profile(tmp_path: Path, tiny_model: Path, stats: Path) -> Path:
    """An engine that has work for some seconds."""
    lengths = {"lengths": "uniform:100:400", "token_ms": 5}
    return emulated_profile(tmp_path, model_dir=tiny_model, slots=8, stats_file=stats, **lengths)


@pytest.mark.parametrize("batch_size", [20, 40], ids=["every slot taken", "a slot free"])
def test_a_worker_that_runs_out_goes_on_or_hands_back(
    fast: Settings,
    tmp_path: Path,
    profile: Path,
    stats: Path,
    redis_server: EmbeddedRedis,
    batch_size: int,
) -> None:
    """With a slot free the consumer connects anew, and Celery may end at what it meets."""
    with FleetHarness(fast, profile, tmp_path) as fleet:
        fleet.enqueue("full", prompts_file(tmp_path / "p.jsonl", 80), batch_size=batch_size)
        worker = fleet.start("w0")
        wait_until(lambda: kept(fleet, "full") > 5, "work is kept")
        held = kept_prompts(fleet, "full")
        before = run_out(worker, redis_server)
        wait_until(lambda: "Redis does not answer" in log_of(worker), "it has no connection left")
        limit_files(worker, before)

        def over() -> bool:
            return worker.process.poll() is not None or fleet.ledger.status("full").finished

        wait_until(over, "the run is finished, or the worker has ended")
        if worker.process.poll() is None:
            fleet.oracle("full")
            assert set(requests(stats).values()) == {1}, "a prompt was generated again"
            assert "attempt failed" not in log_of(worker)
            assert worker.stop() == 0
        else:
            assert worker.process.poll() not in (0, 2)
            assert not fleet.ledger.status("full").leased
            finish(fleet, stats, held)


def test_a_worker_that_stays_without_descriptors_ends_with_75(
    fast: Settings, tmp_path: Path, profile: Path, stats: Path, redis_server: EmbeddedRedis
) -> None:
    """It cannot even say that it hands back; its leases run out, what it kept is there."""
    shorter = "from dflashq.system import threads as b; b.FATAL_S = 2.0"
    program = ("-c", f"{shorter}; from celery.__main__ import main; main()")
    with FleetHarness(fast, profile, tmp_path) as fleet:
        fleet.enqueue("full", prompts_file(tmp_path / "p.jsonl", 120), batch_size=20)
        worker = WorkerHandle(fast, profile, "w0", tmp_path / "w0.log", program=program)
        fleet.workers.append(worker)
        worker.wait_ready()
        family = worker.family()
        wait_until(lambda: kept(fleet, "full") > 5, "work is kept")
        held = kept_prompts(fleet, "full")
        run_out(worker, redis_server)
        assert worker.process.wait(WAIT_S) == 75
        assert "a thread has ended for good: thread=clock" in log_of(worker)
        assert "this worker hands its batches back and exits" in log_of(worker)
        wait_until(lambda: not any(p.is_running() for p in family), "its engine is gone")
        finish(fleet, stats, held)


def finish(fleet: FleetHarness, stats: Path, held: set[str]) -> None:
    """Another worker ends the run; what was kept by then is not asked again."""
    fleet.workers.clear()
    fleet.start("w1")
    fleet.wait_finished("full")
    fleet.oracle("full")
    asked = requests(stats)
    assert {prompt for prompt in held if asked[prompt] > 1} == set()
