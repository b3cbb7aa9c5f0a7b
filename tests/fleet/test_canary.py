"""A canary that dies in a fleet: its run pauses, says so, and goes on as a person decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflashq.config import Settings
from dflashq.core.model import Guard
from dflashq.operations.monitoring.insights import run_view
from dflashq.operations.monitoring.run_condition import Condition
from dflashq.operations.runs import control
from dflashq.operations.runs.backfill import revive
from tests.support.engine_emulator import emulated_profile
from tests.support.fleet import FleetHarness, prompts_file, wait_until

pytestmark = pytest.mark.fleet


@pytest.mark.parametrize("accept", [False, True], ids=["mended", "accepted"])
def test_a_dead_canary_pauses_its_run_until_it_is_mended_or_left_out(
    fast: Settings, tmp_path: Path, tiny_model: Path, accept: bool
) -> None:
    """Its prompts are not on S3 when work begins: every attempt fails alike."""
    notices_file = tmp_path / "notices.jsonl"
    once = fast.model_copy(update={"attempts": 1, "notify_file": str(notices_file)})
    profile = emulated_profile(tmp_path, model_dir=tiny_model, lengths="fixed:60", token_ms=2)
    with FleetHarness(once, profile, tmp_path) as fleet:
        guard = Guard(canary=10)
        prompts = prompts_file(tmp_path / "p.jsonl", 30)
        record = fleet.enqueue("r", prompts, batch_size=10, guard=guard)
        key = record.batches[0].key
        body = fleet.blobs.get(key)
        fleet.blobs.delete(key)
        fleet.start("w0")
        wait_until(lambda: fleet.ledger.state("r") == "paused", "the run pauses itself")
        view = run_view(fleet.ledger.status("r"), [])
        assert view.condition == Condition.PAUSED
        for words in (f"{key} does not exist", "`dflashq resume r` tries the canary again"):
            assert words in view.sentence
        wait_until(lambda: len(notices(notices_file)) == 2, "both are told")
        death, pause = notices(notices_file)["batch_dead"], notices(notices_file)["run_paused"]
        assert "It is the canary, so nothing else of the run is begun" in death
        assert key in pause
        control.resume(fleet.ledger, fleet.blobs, fleet.hints, "r")
        wait_until(lambda: fleet.ledger.state("r") == "paused", "its cause persists")
        if not accept:
            fleet.blobs.put(key, body.body, body.metadata)
        control.resume(fleet.ledger, fleet.blobs, fleet.hints, "r", accept=accept)
        fleet.wait_finished("r")
        status = fleet.ledger.status("r")
        if accept:
            assert (status.done, set(status.dead)) == (2, {"batch-000000"})
            assert "1 batch is dead: dflashq backfill r" in run_view(status, []).sentence
            fleet.blobs.put(key, body.body, body.metadata)
            revive(fleet.ledger, fleet.hints, "r")
            wait_until(lambda: fleet.ledger.status("r").done == 3, "the canary is done as well")
        assert fleet.oracle("r").accepted == 30


def notices(path: Path) -> dict[str, str]:
    """The sentences that people were told, by event."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["event"]: row["sentence"] for row in map(json.loads, lines)}
