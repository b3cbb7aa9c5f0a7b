"""The embedded servers as processes: readiness, crashes, restarts, and no orphans."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from botocore.exceptions import ClientError

from dflashq.core.errors import ConfigError, EmbeddedError
from dflashq.embedded.pidfile import ProcessRecord
from dflashq.embedded.redis import EmbeddedRedis
from dflashq.embedded.s3 import PORT_OFFSETS, EmbeddedS3, free_s3_port
from dflashq.embedded.server_process import ServerProcess
from dflashq.system import procfs
from dflashq.system.ports import EPHEMERAL, free_port, port_is_free
from tests.support.wait import WAIT_S, wait_until


def listening(pid: int) -> set[str]:
    connections = psutil.Process(pid).net_connections(kind="tcp")
    return {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}


def test_a_listening_port_is_not_free() -> None:
    port = free_port()
    assert port_is_free(port)
    with socket.create_server(("127.0.0.1", port)):
        assert not port_is_free(port)
    assert port_is_free(port)


def test_an_s3_port_leaves_room_for_its_neighbours() -> None:
    port = free_s3_port()
    assert port + max(PORT_OFFSETS) < EPHEMERAL
    assert all(port_is_free(port + offset) for offset in PORT_OFFSETS)


def test_redis_keeps_acknowledged_writes_over_a_crash(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path, free_port(), "secret word") as server, server.client() as client:
        for number in range(50):
            client.set(f"k{number}", number)
        server.kill()
        server.start()
        assert [client.get(f"k{n}") for n in range(50)] == [str(n).encode() for n in range(50)]
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendfsync") == {"appendfsync": "always"}
        assert client.dbsize() == 50  # the probe left nothing
        assert listening(server.pid) == {"127.0.0.1"}


def test_redis_does_not_show_its_password(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path, free_port(), "hush-hush") as server:
        assert "hush-hush" not in " ".join(psutil.Process(server.pid).cmdline())
        assert "hush-hush" not in server.url
        assert (tmp_path / "redis.conf").stat().st_mode & 0o077 == 0


def test_s3_keeps_objects_over_a_crash_and_listens_on_loopback_only(tmp_path: Path) -> None:
    server = EmbeddedS3(tmp_path, free_s3_port(), "access", "secret-key-1", "bucket")
    with server:
        client = server.client()
        client.put_object(Bucket="bucket", Key="k", Body=b"body", Metadata={"sha256": "x"})
        assert listening(server.pid) == {"127.0.0.1"}
        server.kill()
        server.start()
        response = client.get_object(Bucket="bucket", Key="k")
        assert (response["Body"].read(), response["Metadata"]) == (b"body", {"sha256": "x"})
        pid = server.pid
    assert procfs.group_members(pid) == []
    server.stop()  # safe to repeat


class FirstRaceHasTwoWinners:
    """An S3 client whose server lets two conditional writes of one key through, once."""

    def __init__(self) -> None:
        self.races: dict[str, int] = {}
        self._lock = threading.Lock()

    def create_bucket(self, Bucket: str) -> None:
        """Every bucket is there."""

    def put_object(self, *, Key: str, IfNoneMatch: str, **_: object) -> None:
        assert IfNoneMatch == "*"
        with self._lock:
            self.races[Key] = self.races.get(Key, 0) + 1
            winners = 2 if list(self.races).index(Key) == 0 else 1
            if self.races[Key] > winners:
                status = {"ResponseMetadata": {"HTTPStatusCode": 412}, "Error": {"Code": "412"}}
                raise ClientError(status, "PutObject")  # type: ignore[arg-type]

    def delete_object(self, **_: object) -> None:
        """What was raced for is gone."""


def test_s3_is_not_ready_while_two_writers_may_create_one_object(tmp_path: Path) -> None:
    server = EmbeddedS3(tmp_path, 1, "key", "secret", "bucket")
    client = FirstRaceHasTwoWinners()
    assert not server._writable(client)
    assert server._writable(client)
    assert len(client.races) == 2


def test_s3_needs_credentials(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not empty"):
        EmbeddedS3(tmp_path, free_s3_port(), "", "", "bucket")


def test_an_invalid_bucket_name_is_told_at_once(tmp_path: Path) -> None:
    server = EmbeddedS3(tmp_path, free_s3_port(), "access", "secret-key-1", "b")
    with pytest.raises(ConfigError, match="'b' is no valid bucket name"):
        server.start()
    with pytest.raises(EmbeddedError, match="not started"):
        _ = server.pid


def test_a_taken_port_is_told_with_the_end_of_the_log(tmp_path: Path) -> None:
    port = free_port()
    server = EmbeddedRedis(tmp_path, port, "secret")
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(EmbeddedError, match=r"(?s)Redis exited with 1.*in use"),
    ):
        server.start()
    with pytest.raises(EmbeddedError, match="not started"):
        _ = server.pid


def test_a_server_that_never_gets_ready_is_stopped(tmp_path: Path) -> None:
    child = ServerProcess("Sleeper", tmp_path / "log")
    child.start([sys.executable, "-c", "import time; print('zzz', flush=True); time.sleep(60)"], {})
    pid = child.pid
    with pytest.raises(EmbeddedError, match=r"(?s)Sleeper was not ready within 1 s.*zzz"):
        child.wait_ready(lambda: False, 1.0)
    assert procfs.group_members(pid) == []


def test_stop_ends_the_whole_group_even_when_it_ignores_sigterm(tmp_path: Path) -> None:
    stubborn = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.fork(); "
        "print('ready', flush=True); time.sleep(60)"
    )
    child = ServerProcess("Stubborn", tmp_path / "log")
    child.start([sys.executable, "-c", stubborn], {})
    child.wait_ready(lambda: (tmp_path / "log").read_text().count("ready") == 2, 10)
    pid = child.pid
    assert len(procfs.group_members(pid)) == 2
    child.stop(grace_s=0.3)
    wait_until(lambda: procfs.group_members(pid) == [])


def test_a_child_dies_with_its_killed_parent(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from dflashq.embedded.redis import EmbeddedRedis\n"
        "from dflashq.system.ports import free_port\n"
        "server = EmbeddedRedis(Path(sys.argv[1]), free_port(), 'secret'); server.start()\n"
        "print(server.pid, flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert procfs.start_time(pid) is not None
        parent.kill()
    wait_until(lambda: procfs.start_time(pid) is None)


def test_a_recycled_pid_is_not_ours(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        true = ProcessRecord.of(stranger.pid)
        recycled = ProcessRecord(true.pid, true.start_time - 1, true.boot)
        other_boot = ProcessRecord(true.pid, true.start_time, "another boot")
        assert true.alive()
        assert not recycled.alive()
        assert not other_boot.alive()
        recycled.stop("stranger")
        assert stranger.poll() is None
        true.write(tmp_path / "pid")
        assert ProcessRecord.read(tmp_path / "pid") == true
        true.stop("stranger")
        assert stranger.wait(WAIT_S) == -signal.SIGTERM
    assert ProcessRecord.read(tmp_path / "none") is None
    (tmp_path / "pid").write_text('{"pid": 1')
    assert ProcessRecord.read(tmp_path / "pid") is None


def test_a_process_that_is_gone_has_no_record() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises(EmbeddedError, match="ended before"):
        ProcessRecord.of(process.pid)
    assert procfs.start_time(os.getpid()) is not None
