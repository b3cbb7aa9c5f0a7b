"""Two workers of one name: the living one loses nothing, the dead and the frozen are replaced."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from dflashq.config import Settings
from dflashq.core import keys
from tests.support.engine_emulator import emulated_profile
from tests.support.fault_fleet import engine_of, engine_port, set_engine_faults
from tests.support.fleet import (
    FleetHarness,
    WorkerHandle,
    kept,
    kept_prompts,
    prompts_file,
    requests,
    wait_until,
)
from tests.support.wait import WAIT_S

pytestmark = pytest.mark.fleet

RUN, PROMPTS = "names", 60


@pytest.fixture
def stats(tmp_path: Path) -> Path:
    return tmp_path / "stats.jsonl"


@pytest.fixture
def profile(tmp_path: Path, tiny_model: Path, stats: Path) -> Path:
    return emulated_profile(
        tmp_path, model_dir=tiny_model, lengths="uniform:50:150", token_ms=5, stats_file=stats
    )


def at_work(fleet: FleetHarness, folder: Path) -> WorkerHandle:
    """A worker that holds batches of a run and has kept some of it; its engine is slow now."""
    worker = fleet.start("gpu0")
    slowly(worker, 20.0)
    fleet.enqueue(RUN, prompts_file(folder / "p.jsonl", PROMPTS), batch_size=PROMPTS // 2)
    wait_until(lambda: kept(fleet, RUN) > 0, "some of it is kept")
    wait_until(lambda: len(fleet.ledger.status(RUN).leased) == 2, "both batches are leased")
    return worker


def slowly(worker: WorkerHandle, factor: float) -> None:
    engine = engine_of(worker)
    assert engine is not None
    set_engine_faults(engine_port(engine), {"slow": factor})


def leases(fleet: FleetHarness) -> dict[bytes, bytes]:
    """The fences of all leases of the run, by batch."""
    rows = fleet.ledger._redis.hgetall(keys.redis_run(RUN, "leases"))
    return {name: fence for name, fence in rows.items() if b":" not in name}


@pytest.mark.timeout(600)  # eight starts
def test_twins_whose_engine_never_starts_cost_the_healthy_one_nothing(
    fast: Settings, tmp_path: Path, tiny_model: Path, profile: Path, stats: Path
) -> None:
    """Of one name on other hosts, as containers with equal host names and process numbers are."""
    broken = emulated_profile(
        tmp_path,
        model_dir=tiny_model,
        name="broken",
        launch={"argv": [sys.executable, "-c", "raise SystemExit(1)"]},
    )
    with FleetHarness(fast, profile, tmp_path) as fleet:
        healthy = at_work(fleet, tmp_path)
        slowly(healthy, 200.0)  # nothing ends before the last twin has come and gone
        held, row = leases(fleet), healthy.row()
        assert len(held) == 2
        assert row is not None
        for number in range(7):
            host = f"host-{number}" if number else ""  # the first on this very host
            log = tmp_path / f"twin-{number}.log"
            twin = WorkerHandle(fast, broken, "gpu0", log, host=host)
            fleet.workers.append(twin)
            assert twin.process.wait(WAIT_S) == 2, twin.tail()
            fleet.workers.remove(twin)
            assert "a worker named gpu0@test is alive on host" in twin.tail()
            now = healthy.row()
            assert now is not None, "its row is another's"
            assert now["boot"] == row["boot"]
        assert leases(fleet) == held
        slowly(healthy, 1.0)
        fleet.wait_finished(RUN)
        assert fleet.oracle(RUN).accepted == PROMPTS
        states = fleet.ledger.batch_states(RUN)
        assert {(state.state, state.attempts) for state in states} == {("done", 1)}
        assert [fleet.ledger.story(RUN, state.name) for state in states] == [[], []]
        assert set(requests(stats).values()) == {1}, "something was generated again"


def test_a_killed_worker_comes_back_under_its_name_alone(
    fast: Settings, tmp_path: Path, profile: Path, stats: Path
) -> None:
    with FleetHarness(fast, profile, tmp_path) as fleet:
        first = at_work(fleet, tmp_path)
        held = kept_prompts(fleet, RUN)
        first.kill()
        second = fleet.start("gpu0")
        assert "the name may be in use" not in second.log.read_text()
        fleet.wait_finished(RUN)
        assert fleet.oracle(RUN).accepted == PROMPTS
        asked = requests(stats)
        assert {asked[prompt] for prompt in held} == {1}
        what = [row["what"] for row in fleet.ledger.story(RUN, "batch-000000")]
        assert len(what) == 1
        assert what[0].startswith("worker gpu0@test (boot ")
        assert " fell silent past its lease" in what[0]
        fleet.workers.remove(first)


def test_a_frozen_worker_that_was_replaced_ends_and_leaves_all_to_the_other(
    fast: Settings, tmp_path: Path, profile: Path, stats: Path
) -> None:
    with FleetHarness(fast, profile, tmp_path) as fleet:
        frozen = at_work(fleet, tmp_path)
        held = kept_prompts(fleet, RUN)
        frozen.signal(signal.SIGSTOP)
        other = fleet.start("gpu0", host="another-host")
        frozen.signal(signal.SIGCONT)
        assert frozen.process.wait(WAIT_S) == 1, frozen.tail()
        assert "another one has its name now" in frozen.log.read_text()
        fleet.workers.remove(frozen)
        assert other.row() is not None, "its row was retired by the other"
        fleet.wait_finished(RUN)
        assert fleet.oracle(RUN).accepted == PROMPTS
        asked = requests(stats)
        assert {asked[prompt] for prompt in held} == {1}
        assert other.process.poll() is None
