"""`dflashq host up` with two GPUs that are none: workers come back, drain, leave nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dflashq.config import Settings
from dflashq.ledger import Ledger
from tests.support.engine_emulator import emulated_profile
from tests.support.env import environment
from tests.support.fleet import ROOT, FleetHarness, prompts_file, wait_until
from tests.support.wait import WAIT_S

pytestmark = pytest.mark.fleet
COMMAND = [sys.executable, "-c", "from dflashq.cli import main; main()", "host", "up"]
SMI = """
import sys
line = " ".join(sys.argv)
uuids = ["GPU-aaaa1111", "GPU-bbbb2222"]
chosen = sys.argv[sys.argv.index("-i") + 1] if "-i" in sys.argv else None
for number, uuid in enumerate(uuids):
    if chosen in (None, str(number), uuid):
        if "mig.mode" in line:
            print(f"{number}, {uuid}, Fake, [N/A]")
        elif "uuid" in line:
            print(uuid)
        elif "memory.used" in line:
            print(0)
"""


class Host:
    """A running `dflashq host up`."""

    def __init__(self, settings: Settings, profile: Path, folder: Path, *options: str) -> None:
        smi = folder / "bin" / "nvidia-smi"
        smi.parent.mkdir(exist_ok=True)
        smi.write_text(f"#!{sys.executable}\n{SMI}")
        smi.chmod(0o755)
        path = f"{smi.parent}{os.pathsep}{os.environ['PATH']}"
        self.log = folder / "host.log"
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*COMMAND, "--profile", str(profile), *options],
                cwd=ROOT,
                env=environment(settings) | {"PATH": path},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._ledger = Ledger(settings)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def workers(self) -> dict[str, int]:
        """Pids of the ready workers by the GPU's name."""
        rows = self._ledger.workers()
        return {n.split("@")[0]: r["pid"] for n, r in rows.items() if r["engine"] == "ready"}

    def wait_workers(self, *names: str, but: int = 0) -> dict[str, int]:
        def ready() -> bool:
            assert self.process.poll() is None, self.output()
            running = self.workers()
            return set(names) <= set(running) and but not in running.values()

        wait_until(ready, f"workers {names}\n{self.output()}")
        return self.workers()

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture
def profile(tmp_path: Path, tiny_model: Path) -> Path:
    return emulated_profile(tmp_path, model_dir=tiny_model, lengths="fixed:400", token_ms=5)


@pytest.fixture
def host(settings: Settings, profile: Path, tmp_path: Path) -> Iterator[Host]:
    started = Host(settings, profile, tmp_path)
    yield started
    family = [] if started.process.poll() is not None else started.family()
    started.process.kill()
    started.process.wait(WAIT_S)
    for process in family:
        if process.is_running():
            process.kill()


def gone(processes: list[psutil.Process]) -> bool:
    return not [p for p in processes if p.is_running() and p.status() != "zombie"]


def test_a_killed_worker_comes_back_and_a_stop_drains_all(
    host: Host, settings: Settings, profile: Path, tmp_path: Path
) -> None:
    first = host.wait_workers("gpu0", "gpu1")
    assert len(set(first.values())) == 2
    os.kill(first["gpu0"], signal.SIGKILL)
    second = host.wait_workers("gpu0", "gpu1", but=first["gpu0"])
    assert second["gpu1"] == first["gpu1"]
    assert re.search(r"gpu0: ended, killed by SIGKILL, again in 1 s", host.output())

    fleet = FleetHarness(settings, profile, tmp_path)
    fleet.enqueue("r", prompts_file(tmp_path / "p.jsonl", 60))
    wait_until(lambda: len(fleet.ledger.status("r").leased) >= 1, "a batch is at work")
    family = host.family()
    host.process.send_signal(signal.SIGTERM)
    assert host.process.wait(WAIT_S) == 0, host.output()
    assert "draining 2 workers" in host.output()
    assert "gpu0: ended, exit code 0" in host.output()
    assert "gpu1: ended, exit code 0" in host.output()
    wait_until(lambda: gone(family), "nothing is left")
    assert not fleet.ledger.status("r").leased, "what was at work is handed back"


def test_workers_die_with_a_killed_supervisor(host: Host) -> None:
    host.wait_workers("gpu0", "gpu1")
    family = host.family()
    assert len(family) >= 4
    host.process.kill()
    host.process.wait(WAIT_S)
    wait_until(lambda: gone(family), "nothing is left")


def test_one_gpu_is_chosen_and_a_second_supervisor_refused(
    settings: Settings, profile: Path, tmp_path: Path
) -> None:
    one = Host(settings, profile, tmp_path, "--gpus", "1")
    try:
        assert set(one.wait_workers("gpu1")) == {"gpu1"}
        (tmp_path / "two").mkdir()
        two = Host(settings, profile, tmp_path / "two", "--gpus", "0")
        assert two.process.wait(WAIT_S) == 1
        assert "already runs on this host" in two.output()
    finally:
        family = one.family()
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(WAIT_S) == 0, one.output()
    wait_until(lambda: gone(family), "nothing is left")


def test_a_worker_that_is_refused_is_not_started_again(
    settings: Settings, profile: Path, tmp_path: Path
) -> None:
    greedy = settings.model_copy(update={"keep_budget_mb": 10**6})
    host = Host(greedy, profile, tmp_path)
    assert host.process.wait(WAIT_S) == 2, host.output()
    assert host.output().count("exit code 2, not started again") == 2
    assert "KEEP_BUDGET_MB" in host.output()
