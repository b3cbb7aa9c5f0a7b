"""`dflashq bench` on emulated engines whose speed is known."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from dflashq.cli.root import root
from dflashq.config import Settings
from dflashq.engine.benchmark import Level, best_level
from tests.support.engine_emulator import EmulatedEngine, emulated_profile, is_emulator
from tests.support.engine_emulator.profile import token_options
from tests.support.env import variables
from tests.support.fleet import prompts_file


def level(concurrency: int, tokens_per_s: float) -> Level:
    return Level(concurrency, 1, 0, tokens_per_s, None, 1.0, 1.0, None, 0, (1,))


def test_the_least_concurrency_that_is_nearly_the_fastest() -> None:
    levels = [level(8, 800), level(16, 985), level(32, 1000), level(64, 990)]
    assert best_level(levels).concurrency == 16


@pytest.fixture
def profile(tmp_path: Path, tiny_model: Path) -> Path:
    return emulated_profile(
        tmp_path, model_dir=tiny_model, slots=8, lengths="uniform:80:120", token_ms=4
    )


def call(settings: Settings, monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, object]:
    for name, value in variables(settings).items():
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(root, ["bench", *words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    report: dict[str, object] = json.loads(done.stdout)
    return report


def test_a_profile_is_started_measured_and_stopped(
    settings: Settings, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = prompts_file(tmp_path / "p.jsonl", 20)
    words = ["--profile", str(profile), "--prompts", str(prompts), "--concurrency", "2,8,32"]
    report = call(settings, monkeypatch, *words, "--rounds", "3", "--price", "2", "--gpus", "4")
    engine = report["engines"][0]  # type: ignore[index]
    rates = {row["concurrency"]: row["tokens_per_s"] for row in engine["levels"]}
    # 250 steps a second at most, as many tokens each as run at once: 2, then 8 of any more. How
    # near to that it comes is a matter of the machine.
    assert 0 < rates[2] < 1.2 * 500
    assert 0 < rates[8] < 1.2 * 2000
    assert 0 < rates[32] < 1.2 * 2000
    assert [row["generations"] for row in engine["levels"]] == [6, 24, 96]
    assert rates[engine["best"]["concurrency"]] >= 0.9 * max(rates.values())
    assert 2.5 < engine["best"]["accept_length"] < 3.9
    assert engine["plan"]["prompts"] == 20
    assert engine["plan"]["dollars"] == pytest.approx(engine["plan"]["seconds"] / 3600 * 8)
    assert not [p for p in psutil.Process().children() if is_emulator(p)]


def test_a_running_server_is_measured(
    settings: Settings,
    profile: Path,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = token_options(tiny_model)
    prompts = prompts_file(tmp_path / "p.jsonl", 4)
    with EmulatedEngine(slots=4, lengths="fixed:50", token_ms=2, **options) as engine:
        words = ["--profile", str(profile), "--prompts", str(prompts), "--concurrency", "4"]
        report = call(settings, monkeypatch, engine.url, *words, "--run-prompts", "1000")
        assert engine.stats()["answered"] == 16 + 2
    row = report["best"]
    assert 0 < row["tokens_per_s"] < 1.2 * 2000  # type: ignore[index]
    assert report["engines"][0]["plan"]["prompts"] == 1000  # type: ignore[index]


def test_a_dead_server_and_no_profile_are_sentences(
    settings: Settings, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = str(prompts_file(tmp_path / "p.jsonl", 2))
    for name, value in variables(settings).items():
        monkeypatch.setenv(name, value)
    words = ["bench", "http://127.0.0.1:9", "--prompts", prompts]
    done = CliRunner().invoke(root, words)
    assert done.exit_code == 2
    assert "--profile" in done.output
    done = CliRunner().invoke(root, [*words, "--profile", str(profile)])
    assert done.exit_code == 1
    assert "http://127.0.0.1:9" in done.output
