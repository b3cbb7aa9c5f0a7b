"""Which GPUs a host may use, and when a worker is started again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dflashq.core.errors import ConfigError, DflashqError, EngineError
from dflashq.operations.hosts import supervisor
from dflashq.operations.hosts.gpus import Gpu, listed, visible
from dflashq.operations.hosts.worker_process import WorkerProcess, pause_s
from tests.support.wait import WAIT_S

ZERO = Gpu("0", "GPU-aaaa1111-0000", "RTX PRO 6000", False)
ONE = Gpu("1", "GPU-bbbb2222-0000", "RTX PRO 6000", False)
CUT = Gpu("2", "GPU-cccc3333-0000", "B200", True)
BOTH = [ZERO, ONE]


def nvidia_smi(folder: Path, text: str) -> None:
    path = folder / "nvidia-smi"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


def test_gpus_are_listed_as_nvidia_smi_has_them(bin_folder: Path) -> None:
    assert listed() == []
    rows = "0, GPU-aaaa1111-0000, RTX PRO 6000, [N/A]\\n2, GPU-cccc3333-0000, B200, Enabled"
    nvidia_smi(bin_folder, f"print('{rows}')")
    assert listed() == [ZERO, CUT]


def test_a_broken_driver_is_told(bin_folder: Path) -> None:
    nvidia_smi(bin_folder, "import sys; sys.exit('NVRM: no')")
    with pytest.raises(DflashqError, match="NVRM: no"):
        listed()


@pytest.mark.parametrize(
    ("mask", "wanted", "chosen"),
    [
        (None, "all", BOTH),
        (None, "1", [ONE]),
        (None, "1,0", [ONE, ZERO]),
        ("1", "all", [ONE]),
        ("GPU-bbbb", "all", [ONE]),
        ("GPU-bbbb2222-0000,0", "all", [ONE, ZERO]),
        ("0,1", "GPU-bbbb", [ONE]),
        ("1,-1,0", "all", [ONE]),
        ("", "all", []),
        ("0,0", "all", [ZERO]),
    ],
)
def test_masks_by_index_and_uuid(mask: str | None, wanted: str, chosen: list[Gpu]) -> None:
    environment = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert visible(BOTH, environment, wanted) == chosen


@pytest.mark.parametrize(
    ("gpus", "mask", "wanted", "says"),
    [
        (BOTH, "MIG-1234", "all", "MIG slice MIG-1234"),
        (BOTH, None, "MIG-GPU-aaaa1111/1/0", "whole GPU"),
        ([ZERO, CUT], None, "all", "cut into MIG slices"),
        (BOTH, "7", "all", "none of this host's GPUs: 0: RTX"),
        (BOTH, "GPU-", "all", "none of this host's GPUs"),
        (BOTH, "0", "1", "hides GPU 1"),
    ],
)
def test_masks_that_are_refused(gpus: list[Gpu], mask: str | None, wanted: str, says: str) -> None:
    environment = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    with pytest.raises(ConfigError, match=says):
        visible(gpus, environment, wanted)


def test_what_an_exit_code_means_for_the_next_start() -> None:
    assert pause_s(0, 1) is None
    assert pause_s(2, 1) is None
    assert [pause_s(75, deaths) for deaths in (1, 2)] == [0.0, 0.0]
    assert pause_s(75, 3) == 4.0, "a fresh start that does not help is a death like others"
    assert [pause_s(-9, deaths) for deaths in (1, 2, 3, 20)] == [1.0, 2.0, 4.0, 60.0]
    assert [pause_s(70, deaths) for deaths in (1, 2, 99)] == [60.0, 120.0, 900.0]


def test_a_worker_that_lived_long_is_started_soon(tmp_path: Path) -> None:
    worker = WorkerProcess("gpu0", "0", "no-such-profile", tmp_path)
    starts = [0.0, 10.0, 1000.0]
    for start, deaths in zip(starts, (1, 2, 1), strict=True):
        worker.start(start, {"PATH": "", "PYTHONPATH": str(tmp_path)})
        process = worker._process
        assert process is not None
        process.kill()
        process.wait(WAIT_S)
        assert worker.ended(start + (500 if start == 1000.0 else 1)) == -9
        assert worker.deaths == deaths
    assert not worker.over


def test_a_large_log_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflashq.operations.hosts.worker_process.LOG_BYTES", 4)
    log = tmp_path / "worker-gpu0.log"
    log.write_text("12345")
    worker = WorkerProcess("gpu0", "", "p", tmp_path)
    worker.start(0.0, {"PATH": ""})
    assert (tmp_path / "worker-gpu0.log.1").read_text() == "12345"
    worker._process.kill()  # type: ignore[union-attr]
    worker._process.wait(WAIT_S)  # type: ignore[union-attr]


def test_one_supervisor_a_host(tmp_path: Path) -> None:
    with (
        supervisor.single_instance(tmp_path),
        pytest.raises(EngineError, match="already runs on this host"),
        supervisor.single_instance(tmp_path),
    ):
        pass
    with supervisor.single_instance(tmp_path):
        pass
