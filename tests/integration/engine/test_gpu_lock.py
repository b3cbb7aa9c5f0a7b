"""One engine per GPU, and a restart only when the GPU's memory is free."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dflashq.core.errors import EngineError
from dflashq.engine.gpu_lock import GpuLock
from tests.support.recorded_supervisor import make_profile
from tests.support.supervised_engine import settings_in, start
from tests.support.wait import wait_until


def test_one_worker_a_gpu(tmp_path: Path, supervise: Any) -> None:
    settings = settings_in(tmp_path, gpu="0")
    first = supervise(make_profile(), settings)
    start(first.supervisor)
    second = supervise(make_profile(), settings)
    with pytest.raises(EngineError, match=f"GPU 0 already has a worker .process {os.getpid()}"):
        second.supervisor.launch()
    first.supervisor.stop(0)
    third = GpuLock(settings.lock_dir, "0")
    third.acquire()
    third.release()


def gpu_looks(memory: Path) -> int:
    """How often the memory in use was asked for."""
    return len(memory.with_suffix(".looks").read_text())


@pytest.mark.usefixtures("fake_gpu")
def test_index_and_uuid_are_one_gpu(tmp_path: Path) -> None:
    first, second = GpuLock(tmp_path / "locks", "0"), GpuLock(tmp_path / "locks", "GPU-ab12")
    first.acquire()
    with pytest.raises(EngineError, match="already has a worker"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_a_restart_waits_for_the_memory(tmp_path: Path, supervise: Any, fake_gpu: Path) -> None:
    recorded = supervise(make_profile(), settings_in(tmp_path, gpu="0"))
    start(recorded.supervisor)
    fake_gpu.write_text("90000")
    os.kill(recorded.pid(), signal.SIGKILL)
    wait_until(lambda: bool(recorded.down))
    looks = gpu_looks(fake_gpu)
    wait_until(lambda: gpu_looks(fake_gpu) >= looks + 3, "the memory is looked at again and again")
    assert len(recorded.ready) == 1
    assert recorded.supervisor.state == "down"
    fake_gpu.write_text("150")
    wait_until(lambda: len(recorded.ready) == 2)


def test_without_a_gpu_there_is_no_lock(tmp_path: Path) -> None:
    for lock in (GpuLock(tmp_path / "locks", ""), GpuLock(tmp_path / "locks", "")):
        lock.acquire()
    assert not (tmp_path / "locks").exists()
