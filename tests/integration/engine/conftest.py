"""Fixtures of the tests that supervise a fake engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dflashq.config import Settings
from dflashq.engine.profiles import Profile
from tests.support.recorded_supervisor import RecordedSupervisor


@pytest.fixture
def supervise() -> Iterator[Callable[[Profile, Settings], RecordedSupervisor]]:
    supervisors: list[RecordedSupervisor] = []

    def make(profile: Profile, settings: Settings) -> RecordedSupervisor:
        supervisors.append(RecordedSupervisor(profile, settings))
        return supervisors[-1]

    yield make
    for recorded in supervisors:
        recorded.supervisor.stop(0)


@pytest.fixture
def fake_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with one GPU, as its nvidia-smi tells; the file returned holds its memory in use."""
    folder, memory = tmp_path / "bin", tmp_path / "memory"
    looks = memory.with_suffix(".looks")
    folder.mkdir()
    memory.write_text("100")
    cases = f"*uuid*) echo GPU-ab12;; *) echo >> {looks}; cat {memory};;"
    script = f'#!/bin/sh\ncase "$*" in {cases} esac\n'
    (folder / "nvidia-smi").write_text(script)
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return memory
