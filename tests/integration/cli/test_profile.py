"""`dflashq profile`: what it shows, and what it holds against an engine."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dflashq.cli.root import root
from dflashq.engine.profiles import known_profiles
from tests.support.engine_emulator import EmulatedEngine, emulated_profile
from tests.support.engine_emulator.profile import token_options


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No `.env` of this folder, no engine of this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DFLASHQ_CACHE_DIR", str(tmp_path / "cache"))


def call(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(root, ["profile", *args])
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def test_list_names_every_profile() -> None:
    rows = call("list").stdout.splitlines()
    assert [row.split()[0] for row in rows] == known_profiles()
    shown = json.loads(call("list", "--json").stdout)["profiles"]
    assert [row["name"] for row in shown] == known_profiles()


def test_show_gives_each_flag_its_reason() -> None:
    text = call("show", "qwen3.6-27b-fp8-rtxpro6000").stdout
    assert "--speculative-num-draft-tokens 4" in text
    assert "unset it is silently 48 with MTP" in text
    assert "speculative_algorithm = EAGLE" in text
    assert "version = at least 0.5.23 and at most 0.5" in text
    row = json.loads(call("show", "external", "--json").stdout)
    assert row["launch"]["kind"] == "external"


def test_argv_is_a_line_for_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASHQ_GPU", "3")
    monkeypatch.setenv("DFLASHQ_MODEL_PATH", "/models/a model")
    words = shlex.split(call("argv", "qwen3.6-27b-b200", "--port", "1234").stdout)
    assert words[0] == "env"
    assert {"CUDA_VISIBLE_DEVICES=3", "HF_HUB_OFFLINE=1"} <= set(words)
    assert words[words.index("--port") + 1] == "1234"
    assert words[words.index("--model-path") + 1] == "/models/a model"
    assert words[words.index("--speculative-algorithm") + 1] == "EAGLE"


def test_argv_of_an_external_profile_is_refused() -> None:
    assert "not ours to start" in call("argv", "external", code=2).stderr


def test_check_needs_an_engine() -> None:
    assert "DFLASHQ_ENGINE_PYTHON" in call("check", "tiny-cpu", code=2).stderr
    assert "DFLASHQ_ENGINE_URL" in call("check", "external", code=2).stderr


@pytest.fixture
def engine_and_profile(tmp_path: Path, tiny_model: Path) -> tuple[EmulatedEngine, str]:
    options = token_options(tiny_model) | {"model": "emulated", "tokenizer": tiny_model}
    return EmulatedEngine(**options), str(emulated_profile(tmp_path, model_dir=tiny_model))


def test_check_holds_it_against_a_running_engine(
    engine_and_profile: tuple[EmulatedEngine, str],
) -> None:
    engine, profile = engine_and_profile
    with engine:
        text = call("check", profile, "--url", engine.url).stdout
    assert "reports what is expected" in text
    assert "8 requests run at once" in text
    assert "renders as we do" in text


def test_check_says_when_renderings_were_not_compared(tmp_path: Path, tiny_model: Path) -> None:
    options = token_options(tiny_model) | {"model": "emulated"}
    profile = str(emulated_profile(tmp_path, model_dir=tiny_model))
    with EmulatedEngine(**options) as engine:
        text = call("check", profile, "--url", engine.url).stdout
    assert "does not tell how it renders: not compared" in text
    assert "renders as we do" not in text


def test_check_tells_every_difference(tmp_path: Path, tiny_model: Path) -> None:
    expect = {"speculative_algorithm": "EAGLE", "context_length": 4096}
    profile = emulated_profile(tmp_path, model_dir=tiny_model, expect=expect)
    with EmulatedEngine(**token_options(tiny_model), speculation="none") as engine:
        text = call("check", str(profile), "--url", engine.url, code=1).stderr
    assert "speculative_algorithm: wanted 'EAGLE', found None; add --speculative" in text
    assert "context_length: wanted 4096, found 32768" in text


def test_check_of_an_external_profile_uses_its_address(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "far.toml"
    path.write_text(
        f'[model]\nid = "tiny"\npath = "{tiny_model}"\n'
        '[launch]\nkind = "external"\ndialect = "openai"\n[concurrency]\nlimit = 5\n'
    )
    options = token_options(tiny_model) | {"model": "tiny", "tokenizer": tiny_model}
    with EmulatedEngine(**options, chat="vllm", api_key="k3y") as engine:
        monkeypatch.setenv("DFLASHQ_ENGINE_URL", engine.url)
        assert "asks for a key" in call("check", str(path), code=1).stderr
        monkeypatch.setenv("DFLASHQ_ENGINE_API_KEY", "k3y")
        result = call("check", str(path))
    assert "5 requests run at once" in result.stdout
    assert "k3y" not in result.output


def test_check_says_that_nobody_is_there(tmp_path: Path, tiny_model: Path) -> None:
    profile = emulated_profile(tmp_path, model_dir=tiny_model)
    text = call("check", str(profile), "--url", "http://127.0.0.1:9", code=1).stderr
    assert "does not listen yet" in text
