"""The worker's care for its engine: hangs, renderings that differ, servers that others run."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests
from pydantic import SecretStr

from dflashq.blobs import commits
from dflashq.config import Settings
from dflashq.core import keys
from tests.fleet.conftest import FleetFactory
from tests.support.engine_emulator import EmulatedEngine
from tests.support.engine_emulator.profile import token_options
from tests.support.fault_fleet import engine_events, engine_of, engine_port
from tests.support.fleet import FleetHarness, prompts_file, wait_until
from tests.support.wait import WAIT_S

pytestmark = pytest.mark.fleet
KEY = "key-that-nobody-may-see"


def test_an_engine_that_hangs_under_work_is_replaced_and_nothing_is_lost(
    emulated_fleet: FleetFactory, tmp_path: Path
) -> None:
    with emulated_fleet(
        lengths="uniform:20:200", token_ms=5, slots=4, launch={"stall_s": 2.0, "poll_s": 0.2}
    ) as fleet:
        fleet.enqueue("hang", prompts_file(tmp_path / "p.jsonl", 60), batch_size=30)
        worker = fleet.start("w0")

        def row() -> dict[str, object]:
            return fleet.ledger.workers().get(worker.name) or {}

        wait_until(lambda: row().get("kv_use") == 1.0, "its vitals are announced")
        announced = row()
        assert announced["accept_length"] == 3.2
        assert announced["queued"] in range(1, 9)
        assert announced["retractions"] == 0
        engine = engine_of(worker)
        assert engine is not None
        url = f"http://127.0.0.1:{engine_port(engine)}"
        requests.post(f"{url}/faults", json={"hang": True}, timeout=WAIT_S).raise_for_status()
        assert requests.get(f"{url}/health", timeout=WAIT_S).status_code == 200
        wait_until(lambda: engine_of(worker) not in (None, engine), "another engine runs")
        assert "the engine hangs: no token has moved" in worker.tail(200)
        fleet.wait_finished("hang")
        assert fleet.oracle("hang").accepted == 60
        assert all(state.attempts == 1 for state in fleet.ledger.batch_states("hang"))


def test_an_engine_with_another_template_is_refused_before_the_first_prompt(
    emulated_fleet: FleetFactory, tmp_path: Path
) -> None:
    with emulated_fleet(template_extra="\n") as fleet:
        fleet.enqueue("other", prompts_file(tmp_path / "p.jsonl", 5))
        worker = fleet.start("w0", wait=False)
        assert worker.process.wait(WAIT_S) == 1
        assert "renders prompts differently" in worker.tail()
        assert "differs at position" in worker.tail()
        assert fleet.ledger.status("other").pending == 1


def test_a_generation_that_loops_is_ended_before_its_time(
    emulated_fleet: FleetFactory, tmp_path: Path
) -> None:
    stats = tmp_path / "stats.jsonl"
    with emulated_fleet(
        lengths="fixed:60",
        token_ms=0.5,
        stats_file=stats,
        faults={"endless": 0.3},
        sampling={"max_new_tokens": 16384},
        launch={"stream_every": 1024},
    ) as fleet:
        fleet.enqueue("loops", prompts_file(tmp_path / "p.jsonl", 24), batch_size=24)
        fleet.start("w0")
        fleet.wait_finished("loops")
        report = fleet.oracle("loops")
        assert set(report.rejected) == {"looping"}
        assert report.accepted + report.rejected["looping"] == 24
        ref = fleet.ledger.done("loops")[keys.batch_name(0)]
        details = [row["detail"] for row in commits.rejected_rows(fleet.blobs, ref)]
        assert len(details) == report.rejected["looping"] > 2
        assert all("ended after" in one and "a piece of 7" in one for one in details)
        cut = [row["ids"] for row in engine_events(stats) if row["event"] == "aborted"]
        assert len(cut) <= len(details)
        assert all(ids < 8192 for ids in cut)


def test_a_run_on_a_chat_server_that_someone_else_runs(
    fast: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    """vLLM's names, a key, no running limit told: exact ids all the same."""
    options = token_options(tiny_model) | {"model": "emulated", "tokenizer": tiny_model}
    with EmulatedEngine(**options, chat="vllm", api_key=KEY, lengths="uniform:20:60") as engine:
        path = tmp_path / "far.toml"
        path.write_text(
            f'[model]\nid = "emulated"\npath = "{tiny_model}"\ncontext_length = 32768\n'
            '[launch]\nkind = "external"\ndialect = "openai"\nstart_timeout_s = 180\n'
            "[sampling]\nmax_new_tokens = 2048\n[concurrency]\nlimit = 8\n"
        )
        far = {"engine_url": engine.url, "engine_api_key": SecretStr(KEY)}
        with FleetHarness(fast.model_copy(update=far), path, tmp_path) as fleet:
            fleet.enqueue("far", prompts_file(tmp_path / "p.jsonl", 40, turns=2), batch_size=20)
            worker = fleet.start("w0")
            fleet.wait_finished("far")
            assert fleet.oracle("far").accepted == 40
            assert worker.stop() == 0
            assert KEY not in worker.log.read_text()
            for key in fleet.blobs.list(keys.run_prefix("far")):
                assert KEY.encode() not in fleet.blobs.get(key).body
        assert requests.get(
            f"{engine.url}/v1/models", headers={"Authorization": f"Bearer {KEY}"}, timeout=WAIT_S
        ).ok
