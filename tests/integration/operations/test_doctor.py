"""Doctor: each finding is ok or says what to do."""

from __future__ import annotations

import json
import re
import shutil
import stat
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from pydantic import SecretStr

from dflashq.config import Settings
from dflashq.core.errors import ConfigError
from dflashq.engine.model_folder import check_model
from dflashq.ledger import Ledger
from dflashq.operations.doctor.engine import engine
from dflashq.operations.doctor.finding import FAILED, OK, SKIPPED, Finding
from dflashq.operations.doctor.services import machine, services
from dflashq.system.ports import free_port
from tests.support.wait import WAIT_S

PROFILE = """
[model]
id = "m"
path = "{model}"
thinking = false

[launch]
python = "{python}"
flags = [{flags}]
"""
CPU = '{ flag = "--device", value = "cpu", why = "no GPU" }'


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A python that has something named sglang: its version comes from the environment."""
    return program(
        tmp_path / "engine" / "python",
        "import sys; assert 'import sglang' in sys.argv[2]; print('0.5.23')",
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "a.safetensors", "b.safetensors"):
        (folder / name).write_text("{}")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "a.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH: no nvidia-smi, whatever this machine has. Returns its only folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def profile(tmp_path: Path, python: Path, model: Path, flags: str = CPU) -> str:
    path = tmp_path / "p.toml"
    text = PROFILE.replace("{model}", str(model)).replace("{python}", str(python))
    path.write_text(text.replace("{flags}", flags))
    return str(path)


def test_real_servers_are_ok(settings: Settings) -> None:
    found = by_name(list(services(settings)))
    assert {name: f.state for name, f in found.items()} == {"redis": OK, "s3": OK, "clock": OK}
    assert "on disk when acknowledged" in found["redis"].says
    assert "one won" in found["s3"].says


def test_servers_that_are_not_there_say_what_to_set(settings: Settings) -> None:
    lost = settings.model_copy(
        update={
            "redis_url": f"redis://127.0.0.1:{free_port()}/0",
            "s3_bucket": "no-such-bucket",
        }
    )
    found = by_name(list(services(lost)))
    assert found["redis"].state == FAILED
    assert "DFLASHQ_REDIS_URL" in found["redis"].says
    assert found["s3"].state == FAILED
    assert "DFLASHQ_S3_BUCKET" in found["s3"].says
    assert found["clock"].state == SKIPPED


def test_a_wrong_password_is_told_and_not_shown(settings: Settings) -> None:
    wrong = settings.model_copy(update={"redis_password": SecretStr("hunter2")})
    redis = next(iter(services(wrong)))
    assert redis.state == FAILED
    assert "DFLASHQ_REDIS_PASSWORD" in redis.says
    assert "hunter2" not in redis.says


def test_a_clock_that_is_off(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    real_now_s = Ledger.now_s
    monkeypatch.setattr(Ledger, "now_s", lambda ledger: real_now_s(ledger) + 3600)
    clock = by_name(list(services(settings)))["clock"]
    assert clock.state == FAILED
    told = re.search(r"(\d+) s apart", clock.says)
    assert told is not None
    assert abs(int(told[1]) - 3600) < WAIT_S  # two clocks are read one after the other


def test_a_full_disk(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [f.state for f in machine(settings)] == [OK, OK]
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 10**12, 10**9))
    state, cache = machine(settings)
    assert (state.state, cache.state) == (FAILED, FAILED)
    assert "DFLASHQ_STATE_DIR" in state.says
    assert "DFLASHQ_CACHE_DIR" in cache.says


def test_a_whole_model(model: Path) -> None:
    assert "2 weight files" in check_model(model)


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("config.json", "lacks config.json"),
        ("tokenizer.json", "lacks a tokenizer"),
        ("b.safetensors", "lacks b.safetensors"),
    ],
)
def test_a_model_that_lacks_something(model: Path, gone: str, said: str) -> None:
    (model / gone).unlink()
    with pytest.raises(ConfigError, match=said):
        check_model(model)


def test_an_empty_shard_a_damaged_index_and_no_weights(model: Path) -> None:
    (model / "a.safetensors").write_text("")
    with pytest.raises(ConfigError, match=r"lacks a\.safetensors"):
        check_model(model)
    index = model / "model.safetensors.index.json"
    index.write_text('{"weight_map": ')
    with pytest.raises(ConfigError, match="is damaged"):
        check_model(model)
    for path in (index, model / "a.safetensors", model / "b.safetensors"):
        path.unlink()
    with pytest.raises(ConfigError, match="lacks weights"):
        check_model(model)
    with pytest.raises(ConfigError, match="DFLASHQ_MODEL_PATH"):
        check_model(model / "nowhere")


def test_an_engine_on_the_cpu(
    settings: Settings, tmp_path: Path, python: Path, model: Path, no_gpu: Path
) -> None:
    found = by_name(list(engine(settings, profile(tmp_path, python, model))))
    assert found["profile"].state == OK
    assert found["engine"] == Finding("engine", OK, f"sglang 0.5.23 in {python}")
    assert found["model"].state == OK
    # The folder looks whole, but nothing of it is a tokenizer: only rendering shows that.
    assert found["tokenizer"].state == FAILED
    assert found["gpu"] == Finding("gpu", OK, "none: fine for a CPU profile")


def test_an_engine_that_cannot_be_imported(
    settings: Settings, tmp_path: Path, model: Path, no_gpu: Path
) -> None:
    bad = program(tmp_path / "bad" / "python", "raise SystemExit('No module named sglang')")
    found = by_name(list(engine(settings, profile(tmp_path, bad, model))))
    assert found["engine"].state == FAILED
    assert "No module named sglang. `dflashq host setup" in found["engine"].says
    gone = profile(tmp_path, tmp_path / "gone", model)
    says = by_name(list(engine(settings, gone)))["engine"].says
    assert "DFLASHQ_ENGINE_PYTHON" in says


def test_a_missing_model_leaves_the_tokenizer_out(
    settings: Settings, tmp_path: Path, python: Path, no_gpu: Path
) -> None:
    found = by_name(list(engine(settings, profile(tmp_path, python, tmp_path / "none"))))
    assert (found["model"].state, found["tokenizer"].state) == (FAILED, SKIPPED)


def test_gpus(settings: Settings, tmp_path: Path, python: Path, no_gpu: Path) -> None:
    name = profile(tmp_path, python, tmp_path / "no-model", flags="")
    (no_gpu_found,) = [f for f in engine(settings, name) if f.name == "gpu"]
    assert no_gpu_found.state == FAILED
    program(no_gpu / "nvidia-smi", "print('0, NVIDIA B200, GPU-aa\\n1, NVIDIA B200, GPU-bb')")
    for gpu, state in (("", OK), ("1", OK), ("GPU-bb", OK), ("2", FAILED)):
        chosen = settings.model_copy(update={"gpu": gpu})
        (found,) = [f for f in engine(chosen, name) if f.name == "gpu"]
        assert (gpu, found.state) == (gpu, state)
        assert "0: NVIDIA B200, GPU-aa; 1: NVIDIA B200, GPU-bb" in found.says


def test_no_profile_and_an_unknown_one(settings: Settings, no_gpu: Path) -> None:
    assert [(f.name, f.state) for f in engine(settings, "")] == [
        ("engine", SKIPPED),
        ("gpu", SKIPPED),
    ]
    (only,) = engine(settings, "no-such")
    assert (only.name, only.state) == ("profile", FAILED)
    assert "no profile 'no-such'" in only.says
