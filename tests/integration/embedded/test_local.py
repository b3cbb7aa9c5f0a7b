"""`dflashq local`: both servers detached, data that stays, nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner, Result

from dflashq.blobs.s3 import Blobs
from dflashq.cli.local import local as command
from dflashq.config import Settings
from dflashq.core.errors import EmbeddedError
from dflashq.embedded import local
from dflashq.embedded.local import LocalStatus
from dflashq.system import procfs
from tests.support.wait import WAIT_S


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Settings]:
    settings = Settings(_env_file=None, state_dir=tmp_path)  # type: ignore[call-arg]
    yield settings
    local.down(settings)


def settings_of(status: LocalStatus) -> Settings:
    """The settings as a shell would have them after reading local.env."""
    read = f"set -a; . '{status.env_file}'; set +a; exec \"$0\" -c "
    show = "'import os, json; print(json.dumps(dict(os.environ)))'"
    env = json.loads(subprocess.check_output(["sh", "-c", read + show, sys.executable]))
    names = {name: f"DFLASHQ_{name.upper()}" for name in Settings.model_fields}
    given = {name: env[variable] for name, variable in names.items() if variable in env}
    return Settings(_env_file=None, **given)


def groups(status: LocalStatus) -> list[int]:
    pids = [server.pid for server in status.servers]
    assert None not in pids
    return [pid for pid in pids if pid is not None]


def test_data_stays_over_down_and_up(state: Settings) -> None:
    first = local.up(state)
    settings = settings_of(first)
    assert first.env_file.stat().st_mode & 0o077 == 0
    redis.Redis.from_url(settings.broker_url()).set("kept", "yes")
    Blobs(settings).put("kept", b"yes")

    again = local.up(state)
    assert groups(again) == groups(first)

    stopped = local.down(state)
    assert [server.running for server in stopped.servers] == [False, False]
    assert [procfs.group_members(group) for group in groups(first)] == [[], []]
    assert local.down(state) == stopped

    settings = settings_of(local.up(state))
    assert redis.Redis.from_url(settings.broker_url()).get("kept") == b"yes"
    assert Blobs(settings).get("kept").body == b"yes"
    Blobs(settings).check_conditional_put("")


def test_the_servers_outlive_the_command(state: Settings) -> None:
    program = (
        "import sys; from pathlib import Path; from dflashq.config import Settings\n"
        "from dflashq.embedded import local\n"
        "local.up(Settings(state_dir=Path(sys.argv[1])))\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(state.state_dir)], check=True, timeout=WAIT_S
    )
    status = local.status(state)
    assert all(server.running for server in status.servers)
    redis_client = redis.Redis.from_url(settings_of(status).broker_url())
    assert redis_client.ping() is True
    local.down(state)
    assert [procfs.group_members(group) for group in groups(status)] == [[], []]


def test_a_recycled_pid_is_left_alone_and_its_taken_port_avoided(state: Settings) -> None:
    first = local.up(state)
    port = settings_of(first).redis_url
    local.down(state)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        stale = {"pid": stranger.pid, "start_time": 1, "boot": procfs.boot_id()}
        (first.folder / "redis.pid").write_text(json.dumps(stale))
        assert not local.status(state).servers[0].running
        local.down(state)
        assert stranger.poll() is None
        stranger.kill()
    number = int(port.rpartition(":")[2].partition("/")[0])
    blocker = "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
    blocker += "print('ready', flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", blocker, str(number)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, **pipes) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        moved = settings_of(local.up(state))
        holder.kill()
    assert moved.redis_url != port
    assert moved.redis_password == settings_of(first).redis_password
    assert redis.Redis.from_url(moved.broker_url()).ping() is True


def test_a_damaged_env_file_is_told(state: Settings) -> None:
    status = local.status(state)
    assert not status.folder.exists()
    status.folder.mkdir()
    status.env_file.write_text("DFLASHQ_REDIS_URL=redis://127.0.0.1:1/0\n")
    with pytest.raises(EmbeddedError, match=r"local\.env is damaged.*data beside it is whole"):
        local.up(state)
    status.env_file.unlink()


def run(state: Settings, *arguments: str) -> Result:
    env = {"DFLASHQ_STATE_DIR": str(state.state_dir)}
    return CliRunner().invoke(command, arguments, env=env, catch_exceptions=False)


def test_the_command_tells_how_to_use_the_servers_and_no_secret(state: Settings) -> None:
    assert run(state, "status").exit_code == 1
    shown = run(state, "up")
    env_file = local.status(state).env_file
    assert shown.exit_code == 0
    assert f"set -a; . {env_file}; set +a" in shown.output
    settings = settings_of(local.status(state))
    output = shown.output + run(state, "status", "--json").output
    for secret in (settings.redis_password, settings.s3_secret_access_key):
        assert secret is not None
        assert secret.get_secret_value() not in output
    listed = json.loads(run(state, "status", "--json").stdout)
    assert [server["running"] for server in listed["servers"]] == [True, True]
    assert run(state, "down").output.count("down") == 2
    assert run(state, "status").exit_code == 1
