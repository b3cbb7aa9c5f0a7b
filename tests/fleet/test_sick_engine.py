"""What fails for one prompt is that prompt's; what fails for all is the engine's: waited out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflashq.blobs.commits import rejected_rows
from dflashq.config import Settings
from dflashq.engine.chat_renderer import ChatRenderer
from tests.chaos.prompts import ids_inside
from tests.fleet.conftest import FleetFactory
from tests.support.engine_emulator import emulated_profile
from tests.support.fault_fleet import engine_of, engine_port, set_engine_faults
from tests.support.fleet import FleetHarness, WorkerHandle, prompts_file, requests, wait_until

pytestmark = pytest.mark.fleet
LONG = 120  # ids: more than any ordinary prompt here has


def with_long_prompts(path: Path, count: int, long: int) -> Path:
    """`count` prompts, of which every one below `long` is longer than `LONG` ids."""
    rows = [
        {
            "id": f"p{n}",
            "prompt": f"What is {n} plus 1?" + (" Why is it so?" * 60 if n < long else ""),
        }
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def fault(worker: WorkerHandle, **faults: object) -> None:
    engine = engine_of(worker)
    assert engine is not None
    set_engine_faults(engine_port(engine), faults)


def announced(fleet: FleetHarness, worker: WorkerHandle, field: str) -> object:
    return (fleet.ledger.workers().get(worker.name) or {}).get(field)


def rejected(fleet: FleetHarness, run: str) -> dict[int, tuple[str, str]]:
    """Reason and detail of every rejected prompt, by index."""
    return {
        row["index"]: (row["reason"], row["detail"])
        for ref in fleet.ledger.done(run).values()
        for row in rejected_rows(fleet.blobs, ref)
    }


WORDS = {
    500: "HTTP 500",
    403: "HTTP 403",
    451: "HTTP 451",
    429: "HTTP 429",
    "garbage": "no JSON",
    "close": "dropped the request",
}


def test_a_gateway_that_refuses_some_prompts_costs_those_alone(
    fast: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    """One was enough: its batch was dead with 49 answers kept and none of 50 settled."""
    stats, renderer = tmp_path / "stats.jsonl", ChatRenderer(tiny_model)
    marks = [f" refused {how} refused" for how in WORDS]
    profile = emulated_profile(
        tmp_path,
        model_dir=tiny_model,
        lengths="uniform:20:60",
        token_ms=2,
        stats_file=stats,
        faults={
            "refused_marks": [
                (ids_inside(renderer, mark), how) for mark, how in zip(marks, WORDS, strict=True)
            ]
        },
    )
    path = tmp_path / "p.jsonl"
    rows = [{"prompt": f"x{mark} x"} for mark in marks]
    rows += [{"prompt": f"What is {n} plus 1?"} for n in range(24)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with FleetHarness(fast, profile, tmp_path) as fleet:
        fleet.enqueue("gate", path, batch_size=10)
        fleet.start("w0")
        fleet.wait_finished("gate")
        report = fleet.oracle("gate")
        assert (report.accepted, dict(report.rejected)) == (24, {"engine_error": len(WORDS)})
        rejections = rejected(fleet, "gate")
        for index, words in enumerate(WORDS.values()):
            reason, detail = rejections[index]
            assert (reason, words in detail) == ("engine_error", True), detail
        assert not fleet.ledger.status("gate").dead
        once = [count for count in requests(stats).values() if count == 1]
        assert len(once) == 24, "nobody else was asked twice"


def test_a_prompt_that_fails_on_one_engine_is_tried_on_a_second(
    emulated_fleet: FleetFactory, tmp_path: Path
) -> None:
    """Its first engine may be the one at fault; what that engine finished is not asked again."""
    stats = tmp_path / "stats.jsonl"
    with emulated_fleet(lengths="uniform:20:60", token_ms=2, stats_file=stats) as fleet:
        first = fleet.start("w0")
        fault(first, refused_over=LONG, hang=True)  # nothing is decided before w1 is there
        fleet.enqueue("second", with_long_prompts(tmp_path / "p.jsonl", 10, 1), batch_size=10)
        wait_until(lambda: bool(fleet.ledger.status("second").leased), "it is at work")
        fleet.start("w1")
        fault(first, hang=False)
        fleet.wait_finished("second")
        assert fleet.oracle("second").accepted == 10
        story = " ".join(
            str(event["what"]) for event in fleet.ledger.story("second", "batch-000000")
        )
        assert "index 0 failed here and is tried on another engine" in story
        assert sorted(requests(stats).values())[:9] == [1] * 9


@pytest.mark.parametrize(("status", "wait_s"), [(500, 0.0), (429, 2.0)])
def test_an_engine_that_only_errs_costs_nothing_but_time(
    emulated_fleet: FleetFactory, tmp_path: Path, status: int, wait_s: float
) -> None:
    """Batches died of it one after the other, and nobody was told."""
    with emulated_fleet(lengths="uniform:20:60", token_ms=5) as fleet:
        worker = fleet.start("w0")
        fault(worker, every_status=status, retry_after_s=wait_s)
        fleet.enqueue("errs", prompts_file(tmp_path / "p.jsonl", 40), batch_size=20)
        wait_until(lambda: f"HTTP {status}" in str(announced(fleet, worker, "sick")), "it is sick")
        assert fleet.ledger.status("errs").done == 0
        fault(worker, every_status=0)
        fleet.wait_finished("errs")
        assert fleet.oracle("errs").accepted == 40
        assert all(state.attempts == 1 for state in fleet.ledger.batch_states("errs"))
        wait_until(lambda: announced(fleet, worker, "sick") == "", "it is well again")


def test_a_sick_engine_of_ours_is_started_again(
    emulated_fleet: FleetFactory, tmp_path: Path
) -> None:
    """No prompt is to blame for the death that we caused."""
    with emulated_fleet(lengths="uniform:20:60", token_ms=5, launch={"sick_s": 5.0}) as fleet:
        worker = fleet.start("w0")
        engine = engine_of(worker)
        fault(worker, every_status=503)
        fleet.enqueue("sick", prompts_file(tmp_path / "p.jsonl", 40), batch_size=20)
        wait_until(lambda: engine_of(worker) not in (None, engine), "another engine runs")
        fleet.wait_finished("sick")
        assert fleet.oracle("sick").accepted == 40
        assert announced(fleet, worker, "restarts") == 1
        assert "strike" not in worker.log.read_text()


def test_a_sick_worker_beside_a_healthy_one_kills_no_batch(
    emulated_fleet: FleetFactory, tmp_path: Path
) -> None:
    stats = tmp_path / "stats.jsonl"
    with emulated_fleet(lengths="uniform:20:60", token_ms=5, stats_file=stats) as fleet:
        sick, well = fleet.start("w0"), fleet.start("w1")
        fault(sick, every_status=500)
        fleet.enqueue("beside", prompts_file(tmp_path / "p.jsonl", 120), batch_size=10)
        fleet.wait_finished("beside")
        assert fleet.oracle("beside").accepted == 120
        assert not fleet.ledger.status("beside").dead
        assert all(state.attempts <= 2 for state in fleet.ledger.batch_states("beside"))
        assert "HTTP 500" in str(announced(fleet, sick, "sick"))
        assert announced(fleet, well, "sick") == ""
