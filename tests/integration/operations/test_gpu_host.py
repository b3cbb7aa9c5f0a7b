"""Preflight: a GPU host that is none, and every way in which it does not fit the engine."""

from __future__ import annotations

import json
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from dflashq.config import Settings
from dflashq.engine.gpu_lock import GpuLock
from dflashq.operations.doctor.finding import FAILED, OK, SKIPPED, Finding
from dflashq.operations.doctor.gpu_host import preflight
from dflashq.operations.hosts.model_download import LocalSource, fetch
from dflashq.system import disk
from tests.unit.core.test_gpu_memory import QWEN

SMI = """
import sys
line = " ".join(sys.argv[1:])
if "compute-apps" in line: print({apps!r})
elif "topo" in line: print("GPU0 X PHB")
elif "compute_cap" in line: print("0, GPU-a, {capability}")
elif "memory.total" in line: print("0, GPU-a, {mib}")
elif "=uuid" in line: print("GPU-a")
elif "query-gpu" in line: print("0, GPU-a, NAME")
else: print("| NVIDIA-SMI 580  CUDA Version: {cuda} |")
"""
FLAGS = """
  { flag = "--attention-backend", value = "BACKEND", why = "x" },
  { flag = "--disable-radix-cache", why = "x" },
  { flag = "--speculative-num-draft-tokens", value = 4, why = "x" },
  { flag = "--enable-linear-replayssm-spec", why = "x" },
  { flag = "--mem-fraction-static", value = 0.85, why = "x" },
  { flag = "--max-running-requests", value = 64, why = "x" },
"""
GOOD = {"cuda": "13.0", "capability": "12.0", "mib": 97887, "apps": ""}


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


class GpuHost:
    """A machine with one card: its tools on the PATH, a model whose weights are sparse files."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder, self.bin = folder, folder / "bin"
        self.settings = settings.model_copy(update={"cache_dir": folder / "cache"})
        self.python = script(folder / "engine" / "python", "print('13.0')")
        script(self.bin / "nvcc", "print('Cuda compilation tools, release 13.0, V13.0.48')")
        self.card()
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps(QWEN))
        (self.model / "tokenizer.json").write_text("{}")
        self.weigh(54_000_000_000)

    def card(self, **changed: Any) -> None:
        script(self.bin / "nvidia-smi", SMI.format(**(GOOD | changed)))

    def weigh(self, size: int) -> None:
        with (self.model / "a.safetensors").open("wb") as weights:
            weights.truncate(size)

    def look(self, backend: str = "flashinfer", more: str = "") -> dict[str, Finding]:
        profile = self._folder / "p.toml"
        flags = FLAGS.replace("BACKEND", backend) + more
        profile.write_text(
            f'[model]\nid = "m"\npath = "{self.model}"\n[launch]\npython = "{self.python}"\n'
            f"flags = [{flags}]\n[expect]\n"
            '"internal_states.0.effective_max_running_requests_per_dp" = { min = 16 }\n'
        )
        return {f.name: f for f in preflight(self.settings, str(profile))}


@pytest.fixture
def host(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> GpuHost:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    return GpuHost(tmp_path, settings)


def test_a_host_that_fits(host: GpuHost) -> None:
    found = host.look()
    states = {name: finding.state for name, finding in found.items()}
    assert states.pop("model hashes") == SKIPPED
    assert set(states.values()) == {OK}, found
    assert "about 87 requests" in found["gpu memory"].says
    assert "64 are asked for" in found["gpu memory"].says
    assert "GPU0" in found["topology"].says


def test_an_old_driver_and_a_wrong_toolkit(host: GpuHost) -> None:
    host.card(cuda="12.8")
    assert "up to CUDA 12.8, torch of the engine needs 13.0" in host.look()["driver"].says
    script(host.bin / "nvcc", "print('release 12.9, V12.9.1')")
    found = host.look()["toolkit"]
    assert (found.state, "CUDA 12.9" in found.says) == (FAILED, True)
    (host.bin / "nvcc").unlink()
    assert "install the CUDA 13.0 toolkit" in host.look()["toolkit"].says


def test_cuda_home_says_which_toolkit(
    host: GpuHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "cuda" / "bin" / "nvcc", "print('release 12.1, V12.1.1')")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert "nvcc is CUDA 12.1" in host.look()["toolkit"].says


def test_a_torch_without_cuda(host: GpuHost) -> None:
    script(host.python, "print(None)")
    assert "built without CUDA" in host.look()["driver"].says


@pytest.mark.parametrize(
    ("capability", "backend", "more", "state"),
    [
        ("12.0", "trtllm_mha", "", OK),
        ("12.0", "fa3", "", FAILED),
        ("10.0", "trtllm_mha", "", OK),
        ("9.0", "trtllm_mha", "", FAILED),
        ("9.0", "fa3", "", OK),
    ],
)
def test_backends_by_capability(
    host: GpuHost, capability: str, backend: str, more: str, state: str
) -> None:
    host.card(capability=capability)
    assert host.look(backend, more)["attention backend"].state == state


def test_fp8_cache_on_sm120(host: GpuHost) -> None:
    fp8 = '{ flag = "--kv-cache-dtype", value = "fp8_e4m3", why = "x" },'
    refused = host.look("trtllm_mha", fp8)["attention backend"]
    assert refused.state == FAILED
    assert "flashinfer or triton" in refused.says
    assert host.look("flashinfer", fp8)["attention backend"].state == OK


def test_a_card_that_is_too_small(host: GpuHost) -> None:
    host.card(mib=49140)
    found = host.look()["gpu memory"]
    assert found.state == FAILED
    assert "54.0 GB of weights" in found.says
    assert "the profile needs 16" in found.says


def test_strangers_on_the_card(host: GpuHost) -> None:
    host.card(apps="4711, GPU-a, 8000")
    found = host.look()["gpu processes"]
    assert found.state == FAILED
    assert "process 4711 has 8000 MiB of GPU 0" in found.says
    lock = GpuLock(host.settings.lock_dir, "0")
    lock.acquire()
    assert host.look()["gpu processes"].says == "none but those of workers"
    lock.release()


def test_hashes_of_a_model_that_was_set_up(host: GpuHost, tmp_path: Path) -> None:
    host.weigh(1000)
    there = tmp_path / "fetched"
    fetch(LocalSource(host.model), there, "", lambda _line: None)
    host.model = there
    assert host.look()["model hashes"].state == OK
    with (there / "a.safetensors").open("r+b") as weights:
        weights.write(b"x")
    assert "a.safetensors" in host.look()["model hashes"].says
    assert host.look()["model hashes"].state == FAILED


usage = namedtuple("usage", "total used free")


def test_a_full_disk_fails(host: GpuHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage(100, 85, 15))
    assert "85% full" in host.look()["room"].says


def test_a_cpu_profile_is_spared_the_card(settings: Settings) -> None:
    assert [f.name for f in preflight(settings, "tiny-cpu")] == [
        *("ports", "room", "limits", "model hashes")
    ]
    assert [f.name for f in preflight(settings, "")] == ["ports", "room"]
