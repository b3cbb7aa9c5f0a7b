"""The engine's process: tied to its owner, restarted within a budget, ended as a group."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import requests

from dflashq.core.errors import ConfigError, EngineError, EngineMismatchError, EngineStartError
from dflashq.engine.process import EngineProcess
from dflashq.engine.profiles import Profile
from dflashq.system import die_with_parent
from dflashq.system.ports import EVERYWHERE, NoFreePortError, free_port
from tests.support.paths import ROOT
from tests.support.recorded_supervisor import INFO, make_profile
from tests.support.supervised_engine import settings_in, start
from tests.support.wait import WAIT_S, wait_until


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_start_ready_stop(tmp_path: Path, supervise: Any) -> None:
    recorded = supervise(make_profile(expect=dict(INFO)), settings_in(tmp_path))
    start(recorded.supervisor)
    assert recorded.supervisor.state == "ready"
    url, info = recorded.ready[0]
    assert requests.get(f"{url}/server_info", timeout=WAIT_S).json()["pid"] == info["pid"]
    recorded.supervisor.stop()
    assert recorded.supervisor.state == "stopped"
    assert not alive(info["pid"])
    assert (recorded.down, recorded.failed) == ([], [])


def test_a_killed_engine_comes_back_on_another_port(tmp_path: Path, supervise: Any) -> None:
    recorded = supervise(make_profile(), settings_in(tmp_path))
    start(recorded.supervisor)
    os.kill(recorded.pid(), signal.SIGKILL)
    wait_until(lambda: len(recorded.ready) == 2)
    (first, _), (second, _) = recorded.ready
    assert first != second
    assert recorded.supervisor.starts == 2
    assert len(recorded.down) == 1
    assert "SIGKILL" in recorded.down[0]
    assert requests.get(f"{second}/server_info", timeout=WAIT_S).status_code == 200


def test_restart_on_order(tmp_path: Path, supervise: Any) -> None:
    recorded = supervise(make_profile(), settings_in(tmp_path))
    start(recorded.supervisor)
    old = recorded.pid()
    recorded.supervisor.restart("no token for 300 s")
    wait_until(lambda: len(recorded.ready) == 2)
    assert recorded.down == ["no token for 300 s"]
    assert not alive(old)


def test_spent_budget_gives_up(tmp_path: Path, supervise: Any) -> None:
    recorded = supervise(make_profile(), settings_in(tmp_path, engine_restarts=1))
    start(recorded.supervisor)
    os.kill(recorded.pid(), signal.SIGKILL)
    wait_until(lambda: len(recorded.ready) == 2)
    os.kill(recorded.pid(), signal.SIGKILL)
    wait_until(lambda: bool(recorded.failed))
    assert recorded.supervisor.state == "failed"
    assert "died 2 times within an hour" in str(recorded.failed[0])
    assert len(recorded.failed) == 1
    assert len(recorded.ready) == 2


def test_refunded_deaths_cost_nothing(tmp_path: Path, supervise: Any) -> None:
    recorded = supervise(make_profile(), settings_in(tmp_path, engine_restarts=0))
    recorded.supervisor._on_down = lambda _: recorded.supervisor.refund_deaths(1)
    start(recorded.supervisor)
    for starts in (2, 3):
        os.kill(recorded.pid(), signal.SIGKILL)
        wait_until(lambda starts=starts: len(recorded.ready) == starts)
    assert recorded.failed == []


def test_wrong_engine_is_refused(tmp_path: Path, supervise: Any) -> None:
    expect = {
        "speculative_algorithm": "NEXTN",
        "internal_states.0.speculative_num_steps": 3,
        "version": {"min": "0.5.24"},
    }
    recorded = supervise(make_profile(expect=expect), settings_in(tmp_path))
    with pytest.raises(EngineMismatchError) as caught:
        start(recorded.supervisor)
    text = str(caught.value)
    assert "speculative_algorithm: wanted 'NEXTN', found 'EAGLE'" in text
    assert "add --speculative-algorithm NEXTN" in text
    assert "wanted 3, found nothing; add --speculative-num-steps 3" in text
    assert "version: wanted at least 0.5.24, found '0.5.23'" in text
    assert recorded.ready == []
    assert recorded.supervisor.state == "failed"


def test_a_start_that_dies_shows_its_log(tmp_path: Path, supervise: Any) -> None:
    profile = make_profile("--crash", "CUDA error: no kernel image")
    recorded = supervise(profile, settings_in(tmp_path))
    with pytest.raises(EngineStartError, match="CUDA error: no kernel image") as caught:
        start(recorded.supervisor)
    assert "exited with 1" in str(caught.value)
    assert len(recorded.failed) == 1


def test_a_lost_port_is_tried_again(tmp_path: Path, supervise: Any) -> None:
    profile = make_profile("--crash", "OSError: [Errno 98] Address already in use")
    recorded = supervise(profile, settings_in(tmp_path, engine_restarts=1))
    with pytest.raises(EngineError, match="died 2 times"):
        start(recorded.supervisor)


def test_a_late_start_is_an_error(tmp_path: Path, supervise: Any) -> None:
    recorded = supervise(make_profile("--deaf", start_timeout_s=5), settings_in(tmp_path))
    with pytest.raises(EngineStartError, match="it listens, but generates nothing"):
        start(recorded.supervisor)


def test_stop_does_not_wait_for_the_start(tmp_path: Path, supervise: Any) -> None:
    """A stop that did would end this test by its time limit."""
    recorded = supervise(
        make_profile("--deaf", start_timeout_s=100 * WAIT_S), settings_in(tmp_path)
    )
    recorded.supervisor.launch()
    assert not recorded.supervisor.wait_started(0.5)
    recorded.supervisor.stop(0)
    assert recorded.failed == []


def test_the_whole_group_ends(tmp_path: Path, supervise: Any) -> None:
    recorded = supervise(make_profile("--child", "--stubborn"), settings_in(tmp_path))
    start(recorded.supervisor)
    info = recorded.ready[0][1]
    assert alive(info["child"])
    recorded.supervisor.stop(0.3)
    assert not alive(info["pid"])
    assert not alive(info["child"])


def test_a_dead_leader_takes_its_group_along(tmp_path: Path, supervise: Any) -> None:
    recorded = supervise(make_profile("--child"), settings_in(tmp_path))
    start(recorded.supervisor)
    child = recorded.ready[0][1]["child"]
    os.kill(recorded.pid(), signal.SIGKILL)
    wait_until(lambda: len(recorded.ready) == 2)
    assert not alive(child)


OWNER = """
    import sys, threading
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from tests.support.recorded_supervisor import RecordedSupervisor, make_profile
    from tests.support.supervised_engine import settings_in, start
    recorded = RecordedSupervisor(make_profile(), settings_in(Path(sys.argv[2])))
    start(recorded.supervisor)
    print(recorded.pid(), flush=True)
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


def test_our_secrets_stay_ours(
    tmp_path: Path, supervise: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DFLASHQ_REDIS_PASSWORD", "secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    recorded = supervise(make_profile(env={"OMP_NUM_THREADS": "1"}), settings_in(tmp_path, gpu="3"))
    start(recorded.supervisor)
    env = recorded.ready[0][1]["env"]
    assert "secret" not in env.values()
    assert env["CUDA_VISIBLE_DEVICES"] == "3"
    assert env["OMP_NUM_THREADS"] == "1"


def test_an_occupied_port_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        free = free_port(host=EVERYWHERE)
        assert free_port(host=EVERYWHERE, candidates=[port, free]) == free
        with pytest.raises(NoFreePortError, match="no free TCP port"):
            free_port(host=EVERYWHERE, candidates=[port])
    with pytest.raises(NoFreePortError, match="no free TCP port"):
        free_port(candidates=[free], but=frozenset({free}))


def test_old_logs_are_removed(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    for number in itertools.islice(itertools.count(), 30):
        engine = EngineProcess(make_profile("--crash", "x"), settings, number=number)
        engine.start()
        engine.describe_exit()
    assert len(list((settings.state_dir / "logs").glob("engine-fake-cpu-*.log"))) == 20


@pytest.mark.parametrize("missing", ["python", "model"])
def test_what_is_not_installed_is_named(tmp_path: Path, supervise: Any, missing: str) -> None:
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
        start(supervise(profile, settings_in(tmp_path)).supervisor)


def test_an_external_engine_is_recorded_not_owned(tmp_path: Path, supervise: Any) -> None:
    with EngineOf(tmp_path) as engine:
        profile = Profile.model_validate(
            {
                "name": "far",
                "model": {"id": "far"},
                "launch": {"kind": "external", "url": engine.base_url, "start_timeout_s": WAIT_S},
            }
        )
        recorded = supervise(profile, settings_in(tmp_path))
        start(recorded.supervisor)
        assert recorded.ready[0][0] == engine.base_url
        recorded.supervisor.stop()
        assert engine.is_up()
        again = supervise(profile, settings_in(tmp_path))
        start(again.supervisor)
        engine.stop(0)
        wait_until(lambda: bool(again.down), 30)
        assert "does not answer" in again.down[0]


class EngineOf:
    """A ready EngineProcess for the length of a block."""

    def __init__(self, tmp_path: Path) -> None:
        self._engine = EngineProcess(make_profile(), settings_in(tmp_path))

    def __enter__(self) -> EngineProcess:
        self._engine.start()
        self._engine.wait_ready(20, threading.Event())
        return self._engine

    def __exit__(self, *_: object) -> None:
        self._engine.stop(0)
