"""The engine's process: tied to its owner, restarted within a budget, ended as a group."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from dflashq.config import Settings
from dflashq.core.errors import ConfigError, EngineError, EngineMismatchError, EngineStartError
from dflashq.engine.gpu_lock import GpuLock
from dflashq.engine.process import EngineProcess
from dflashq.engine.profiles import Profile
from dflashq.engine.supervisor import EngineSupervisor
from dflashq.system import die_with_parent, processes
from tests.support import fake_engine
from tests.support.paths import ROOT
from tests.support.supervised_engine import start
from tests.support.wait import WAIT_S, wait_until

FAKE = Path(fake_engine.__file__)
INFO = {"version": "0.5.23", "speculative_algorithm": "EAGLE"}


def make_settings(tmp_path: Path, **values: Any) -> Settings:
    return Settings(
        _env_file=None, state_dir=tmp_path / "state", lock_dir=tmp_path / "locks", **values
    )


def make_profile(*extra: str, expect: dict[str, Any] | None = None, **launch: Any) -> Profile:
    argv = [sys.executable, str(FAKE), "--port", "{port}", "--info", json.dumps(INFO), *extra]
    return Profile.model_validate(
        {
            "name": "fake",
            "model": {"id": "fake"},
            "launch": {"kind": "command", "argv": argv, "start_timeout_s": WAIT_S, **launch},
            "expect": expect or {},
        }
    )


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Watched:
    """A supervisor with what it called back."""

    def __init__(self, profile: Profile, settings: Settings) -> None:
        self.ready: list[tuple[str, dict[str, Any]]] = []
        self.down: list[str] = []
        self.failed: list[Exception] = []
        self.supervisor = EngineSupervisor(
            profile,
            settings,
            on_ready=lambda url, info: self.ready.append((url, info)),
            on_down=self.down.append,
            on_failed=self.failed.append,
        )

    def pid(self) -> int:
        return int(self.ready[-1][1]["pid"])


@pytest.fixture
def watch() -> Iterator[Callable[[Profile, Settings], Watched]]:
    made: list[Watched] = []

    def make(profile: Profile, settings: Settings) -> Watched:
        made.append(Watched(profile, settings))
        return made[-1]

    yield make
    for watched in made:
        watched.supervisor.stop(0)


def test_start_ready_stop(tmp_path: Path, watch: Any) -> None:
    watched = watch(make_profile(expect=dict(INFO)), make_settings(tmp_path))
    start(watched.supervisor)
    assert watched.supervisor.state == "ready"
    url, info = watched.ready[0]
    assert url == watched.supervisor.base_url
    assert requests.get(f"{url}/server_info", timeout=WAIT_S).json()["pid"] == info["pid"]
    watched.supervisor.stop()
    assert watched.supervisor.state == "stopped"
    assert not alive(info["pid"])
    assert (watched.down, watched.failed) == ([], [])


def test_a_killed_engine_comes_back_on_another_port(tmp_path: Path, watch: Any) -> None:
    watched = watch(make_profile(), make_settings(tmp_path))
    start(watched.supervisor)
    os.kill(watched.pid(), signal.SIGKILL)
    wait_until(lambda: len(watched.ready) == 2)
    (first, _), (second, _) = watched.ready
    assert first != second
    assert watched.supervisor.starts == 2
    assert len(watched.down) == 1
    assert "SIGKILL" in watched.down[0]
    assert requests.get(f"{second}/server_info", timeout=WAIT_S).status_code == 200


def test_restart_on_order(tmp_path: Path, watch: Any) -> None:
    watched = watch(make_profile(), make_settings(tmp_path))
    start(watched.supervisor)
    old = watched.pid()
    watched.supervisor.restart("no token for 300 s")
    wait_until(lambda: len(watched.ready) == 2)
    assert watched.down == ["no token for 300 s"]
    assert not alive(old)


def test_spent_budget_gives_up(tmp_path: Path, watch: Any) -> None:
    watched = watch(make_profile(), make_settings(tmp_path, engine_restarts=1))
    start(watched.supervisor)
    os.kill(watched.pid(), signal.SIGKILL)
    wait_until(lambda: len(watched.ready) == 2)
    os.kill(watched.pid(), signal.SIGKILL)
    wait_until(lambda: bool(watched.failed))
    assert watched.supervisor.state == "failed"
    assert "died 2 times within an hour" in str(watched.failed[0])
    assert len(watched.failed) == 1
    assert len(watched.ready) == 2


def test_refunded_deaths_cost_nothing(tmp_path: Path, watch: Any) -> None:
    watched = watch(make_profile(), make_settings(tmp_path, engine_restarts=0))
    watched.supervisor._on_down = lambda _: watched.supervisor.refund_deaths(1)
    start(watched.supervisor)
    for starts in (2, 3):
        os.kill(watched.pid(), signal.SIGKILL)
        wait_until(lambda starts=starts: len(watched.ready) == starts)
    assert watched.failed == []


def test_wrong_engine_is_refused(tmp_path: Path, watch: Any) -> None:
    expect = {
        "speculative_algorithm": "NEXTN",
        "internal_states.0.speculative_num_steps": 3,
        "version": {"min": "0.5.24"},
    }
    watched = watch(make_profile(expect=expect), make_settings(tmp_path))
    with pytest.raises(EngineMismatchError) as caught:
        start(watched.supervisor)
    text = str(caught.value)
    assert "speculative_algorithm: wanted 'NEXTN', found 'EAGLE'" in text
    assert "add --speculative-algorithm NEXTN" in text
    assert "wanted 3, found nothing; add --speculative-num-steps 3" in text
    assert "version: wanted at least 0.5.24, found '0.5.23'" in text
    assert watched.ready == []
    assert watched.supervisor.state == "failed"


def test_a_start_that_dies_shows_its_log(tmp_path: Path, watch: Any) -> None:
    profile = make_profile("--crash", "CUDA error: no kernel image")
    watched = watch(profile, make_settings(tmp_path))
    with pytest.raises(EngineStartError, match="CUDA error: no kernel image") as caught:
        start(watched.supervisor)
    assert "exited with 1" in str(caught.value)
    assert len(watched.failed) == 1


def test_a_lost_port_is_tried_again(tmp_path: Path, watch: Any) -> None:
    profile = make_profile("--crash", "OSError: [Errno 98] Address already in use")
    watched = watch(profile, make_settings(tmp_path, engine_restarts=1))
    with pytest.raises(EngineError, match="died 2 times"):
        start(watched.supervisor)


def test_a_late_start_is_an_error(tmp_path: Path, watch: Any) -> None:
    watched = watch(make_profile("--deaf", start_timeout_s=5), make_settings(tmp_path))
    with pytest.raises(EngineStartError, match="it listens, but generates nothing"):
        start(watched.supervisor)


def test_stop_does_not_wait_for_the_start(tmp_path: Path, watch: Any) -> None:
    """A stop that did would end this test by its time limit."""
    watched = watch(make_profile("--deaf", start_timeout_s=100 * WAIT_S), make_settings(tmp_path))
    watched.supervisor.launch()
    assert not watched.supervisor.wait_started(0.5)
    watched.supervisor.stop(0)
    assert watched.failed == []


def test_the_whole_group_ends(tmp_path: Path, watch: Any) -> None:
    watched = watch(make_profile("--child", "--stubborn"), make_settings(tmp_path))
    start(watched.supervisor)
    info = watched.ready[0][1]
    assert alive(info["child"])
    watched.supervisor.stop(0.3)
    assert not alive(info["pid"])
    assert not alive(info["child"])


def test_a_dead_leader_takes_its_group_along(tmp_path: Path, watch: Any) -> None:
    watched = watch(make_profile("--child"), make_settings(tmp_path))
    start(watched.supervisor)
    child = watched.ready[0][1]["child"]
    os.kill(watched.pid(), signal.SIGKILL)
    wait_until(lambda: len(watched.ready) == 2)
    assert not alive(child)


OWNER = """
    import sys, threading
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from tests.integration.engine.test_process import Watched, make_profile, make_settings, start
    watched = Watched(make_profile(), make_settings(Path(sys.argv[2])))
    start(watched.supervisor)
    print(watched.pid(), flush=True)
    threading.Event().wait()
"""


def test_the_engine_dies_with_its_owner(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), str(ROOT), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    with owner:
        pid = int(owner.stdout.readline())
        assert alive(pid)
        owner.kill()
    wait_until(lambda: not alive(pid), 5)


def test_an_owner_that_died_first_starts_nothing(tmp_path: Path) -> None:
    mark, script = tmp_path / "mark", str(die_with_parent.__file__)
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            script,
            str(os.getpid() + 1),
            "touch",
            str(mark),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "the parent of touch died" in done.stderr
    assert not mark.exists()


def test_our_secrets_stay_ours(tmp_path: Path, watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASHQ_REDIS_PASSWORD", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    watched = watch(make_profile(env={"OMP_NUM_THREADS": "1"}), make_settings(tmp_path, gpu="3"))
    start(watched.supervisor)
    env = watched.ready[0][1]["env"]
    assert "secret" not in env.values()
    assert env["CUDA_VISIBLE_DEVICES"] == "3"
    assert env["OMP_NUM_THREADS"] == "1"


def test_an_occupied_port_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        free = processes.pick_port()
        assert processes.pick_port([port, free]) == free
        with pytest.raises(EngineError, match="no free TCP port"):
            processes.pick_port([port])
    with pytest.raises(EngineError, match="no free TCP port"):
        processes.pick_port([free], but=frozenset({free}))


def test_one_worker_a_gpu(tmp_path: Path, watch: Any) -> None:
    settings = make_settings(tmp_path, gpu="0")
    first = watch(make_profile(), settings)
    start(first.supervisor)
    second = watch(make_profile(), settings)
    with pytest.raises(EngineError, match=f"GPU 0 already has a worker .process {os.getpid()}"):
        second.supervisor.launch()
    first.supervisor.stop(0)
    third = GpuLock(settings.lock_dir, "0")
    third.acquire()
    third.release()


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


def test_a_restart_waits_for_the_memory(tmp_path: Path, watch: Any, fake_gpu: Path) -> None:
    watched = watch(make_profile(), make_settings(tmp_path, gpu="0"))
    start(watched.supervisor)
    fake_gpu.write_text("90000")
    os.kill(watched.pid(), signal.SIGKILL)
    wait_until(lambda: bool(watched.down))
    looks = gpu_looks(fake_gpu)
    wait_until(lambda: gpu_looks(fake_gpu) >= looks + 3, "the memory is looked at again and again")
    assert len(watched.ready) == 1
    assert watched.supervisor.state == "down"
    fake_gpu.write_text("150")
    wait_until(lambda: len(watched.ready) == 2)


def test_without_a_gpu_there_is_no_lock(tmp_path: Path) -> None:
    for lock in (GpuLock(tmp_path / "locks", ""), GpuLock(tmp_path / "locks", "")):
        lock.acquire()
    assert not (tmp_path / "locks").exists()


def test_old_logs_are_removed(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    for number in itertools.islice(itertools.count(), 30):
        engine = EngineProcess(make_profile("--crash", "x"), settings, number=number)
        engine.start()
        engine.describe_exit()
    assert len(list((settings.state_dir / "logs").glob("engine-fake-cpu-*.log"))) == 20


@pytest.mark.parametrize("missing", ["python", "model"])
def test_what_is_not_installed_is_named(tmp_path: Path, watch: Any, missing: str) -> None:
    python = "/nowhere/python" if missing == "python" else sys.executable
    profile = Profile.model_validate(
        {
            "name": "absent",
            "model": {"id": "absent", "path": str(tmp_path / "model")},
            "launch": {"kind": "sglang", "python": python},
        }
    )
    expected = "DFLASHQ_ENGINE_PYTHON" if missing == "python" else "DFLASHQ_MODEL_PATH"
    with pytest.raises(ConfigError, match=expected):
        start(watch(profile, make_settings(tmp_path)).supervisor)


def test_an_external_engine_is_watched_not_owned(tmp_path: Path, watch: Any) -> None:
    with EngineOf(tmp_path) as engine:
        profile = Profile.model_validate(
            {
                "name": "far",
                "model": {"id": "far"},
                "launch": {"kind": "external", "url": engine.base_url, "start_timeout_s": WAIT_S},
            }
        )
        watched = watch(profile, make_settings(tmp_path))
        start(watched.supervisor)
        assert watched.ready[0][0] == engine.base_url
        watched.supervisor.stop()
        assert engine.is_up()
        again = watch(profile, make_settings(tmp_path))
        start(again.supervisor)
        engine.stop(0)
        wait_until(lambda: bool(again.down), 30)
        assert "does not answer" in again.down[0]


class EngineOf:
    """A ready EngineProcess for the length of a block."""

    def __init__(self, tmp_path: Path) -> None:
        self._engine = EngineProcess(make_profile(), make_settings(tmp_path))

    def __enter__(self) -> EngineProcess:
        self._engine.start()
        self._engine.wait_ready(20, threading.Event())
        return self._engine

    def __exit__(self, *_: object) -> None:
        self._engine.stop(0)
