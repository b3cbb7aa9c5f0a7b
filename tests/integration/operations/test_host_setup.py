"""`dflashq host setup`: an engine environment by the real pip, without a network; a model."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from dflashq.cli.root import root
from dflashq.config import Settings
from dflashq.core.errors import EmbeddedError, UsageError
from dflashq.embedded.cpu_engine import MODEL_RECORD
from dflashq.engine.profiles import load_profile
from dflashq.operations.hosts import engine_install
from dflashq.operations.hosts.setup import set_up, steps
from tests.support.env import variables
from tests.support.paths import TINY_MODEL as TINY

QWEN = "qwen3.6-27b-rtxpro6000"
META = "Metadata-Version: 2.1\nName: fakeengine\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip finds wheels in one folder only; it is returned."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def make_wheel(folder: Path) -> None:
    with zipfile.ZipFile(folder / "fakeengine-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("fakeengine.py", "version = '1.0'\n")
        wheel.writestr("fakeengine-1.0.dist-info/METADATA", META)
        wheel.writestr("fakeengine-1.0.dist-info/WHEEL", WHEEL)
        wheel.writestr("fakeengine-1.0.dist-info/RECORD", "")


def silent(_line: str) -> None:
    """Progress that nobody reads."""


def test_the_pin_is_that_of_the_package() -> None:
    assert engine_install.pinned() == "sglang==0.5.23"


def test_an_engine_is_installed_resumed_and_linked(no_network: Path, tmp_path: Path) -> None:
    need, trial = "fakeengine==1.0", "import fakeengine"
    with pytest.raises(EmbeddedError, match="fakeengine"):
        engine_install.install(tmp_path, need, trial, silent)
    folder = engine_install.engine_folder(tmp_path, need)
    assert not (folder / engine_install.STAMP).exists()
    assert not (tmp_path / "engines" / "fakeengine").exists()

    make_wheel(no_network)
    python = engine_install.install(tmp_path, need, trial, silent)
    link = tmp_path / "engines" / "fakeengine" / "bin" / "python"
    for path in (python, link):
        said = subprocess.run(
            [path, "-c", "import fakeengine; print(fakeengine.version)"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert said.stdout.strip() == "1.0"
    told: list[str] = []
    assert engine_install.install(tmp_path, need, trial, told.append) == python
    assert told == [], "nothing is done twice"


def test_a_dry_run_tells_and_does_nothing(settings: Settings, tmp_path: Path) -> None:
    empty = settings.model_copy(update={"cache_dir": tmp_path / "cache"})
    profile = load_profile(QWEN, empty)
    engine, model = steps(profile, empty, "hub", "c0ffee")
    assert "pip install sglang==0.5.23" in engine
    assert "Qwen/Qwen3.6-27B (c0ffee) from the hub" in model
    assert "SGLang for the CPU" in steps(load_profile("smollm2-cpu", empty), empty, "hub", "")[0]
    assert "s3://b/m to" in steps(profile, empty, "s3://b/m", "")[1]
    assert not (tmp_path / "cache").exists()


def test_the_command_fetches_a_model_from_a_folder(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.touch()
    given = settings.model_copy(
        update={"cache_dir": tmp_path / "cache", "engine_python": str(python)}
    )
    for name, value in variables(given).items():
        monkeypatch.setenv(name, value)
    words = ["host", "setup", "--profile", "tiny-cpu", "--from", str(TINY)]
    dry = CliRunner().invoke(root, [*words, "--dry-run"], catch_exceptions=False)
    assert f"DFLASHQ_ENGINE_PYTHON={python}" in dry.stdout
    assert not (tmp_path / "cache").exists()
    for said in ("weight file", "as recorded by sha256"):
        done = CliRunner().invoke(root, words, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert said in done.stdout
    there = tmp_path / "cache" / "models" / "tiny-thinking"
    assert (there / MODEL_RECORD).is_file()
    assert (there / "config.json").read_bytes() == (TINY / "config.json").read_bytes()


def test_an_engine_of_somebody_else_is_not_ours_to_set_up(
    settings: Settings, tmp_path: Path
) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text(
        '[model]\nid = "m"\n[launch]\nkind = "external"\nurl = "http://127.0.0.1:1"\n'
    )
    with pytest.raises(UsageError, match="not ours to set up"):
        next(iter(set_up(load_profile(str(profile), settings), settings, "hub", "", silent)))
