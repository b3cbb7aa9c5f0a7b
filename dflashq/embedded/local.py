"""Redis and S3 that keep running on this machine: `dflashq local up`, `down` and `status`.

`state_dir/local` holds the data of both servers, their logs, and `local.env` with generated
credentials. Data and credentials outlive `down`.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from dflashq.config import Settings
from dflashq.embedded.local_env import LocalEnv
from dflashq.embedded.pidfile import ProcessRecord
from dflashq.embedded.redis import EmbeddedRedis
from dflashq.embedded.s3 import EmbeddedS3
from dflashq.system.file_lock import held

log = logging.getLogger(__name__)

REDIS, S3 = "redis", "s3"


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One server; `address` and `pid` are None when it does not run."""

    name: str
    running: bool
    address: str | None
    pid: int | None
    log_file: Path


@dataclass(frozen=True, slots=True)
class LocalStatus:
    """Both servers, and the file of environment variables that lead to them."""

    folder: Path
    env_file: Path
    servers: tuple[ServerStatus, ...]


def up(settings: Settings) -> LocalStatus:
    """Start the servers that do not run; blocks until both take writes. Safe to repeat.

    EmbeddedError with the end of a server's log when it does not come up; that server is then
    stopped again.
    """
    folder = _folder(settings)
    with _exclusive(folder):
        env = LocalEnv.read(_env_file(folder)) or LocalEnv.fresh()
        env = _up_redis(folder, env)
        env = _up_s3(folder, env)
    return status(settings)


def down(settings: Settings) -> LocalStatus:
    """Stop both servers and all their processes. Blocks until they are gone. Safe to repeat."""
    folder = _folder(settings)
    with _exclusive(folder):
        for name in (S3, REDIS):
            record = ProcessRecord.read(_pid_file(folder, name))
            if record is not None:
                record.stop(name)
            _pid_file(folder, name).unlink(missing_ok=True)
    return status(settings)


def status(settings: Settings) -> LocalStatus:
    """Which servers run now. Changes and creates nothing; does not block."""
    folder = _folder(settings)
    env = LocalEnv.read(_env_file(folder))
    addresses: dict[str, str] = {}
    if env is not None:
        addresses = {
            REDIS: _redis(folder, env).url,
            S3: _s3(folder, env).endpoint_url,
        }
    servers = tuple(_server_status(folder, name, addresses.get(name)) for name in (REDIS, S3))
    return LocalStatus(folder, _env_file(folder), servers)


def _server_status(folder: Path, name: str, address: str | None) -> ServerStatus:
    record = _running(folder, name)
    log_file = folder / name / f"{name}.log"
    if record is None:
        return ServerStatus(name, running=False, address=None, pid=None, log_file=log_file)
    return ServerStatus(name, running=True, address=address, pid=record.pid, log_file=log_file)


def _up_redis(folder: Path, env: LocalEnv) -> LocalEnv:
    if _running(folder, REDIS):
        return env
    env = env.with_free_redis_port()
    server = _redis(folder, env)
    return _started(server, folder, REDIS, env)


def _up_s3(folder: Path, env: LocalEnv) -> LocalEnv:
    if _running(folder, S3):
        return env
    env = env.with_free_s3_port()
    server = _s3(folder, env)
    return _started(server, folder, S3, env)


def _started(
    server: EmbeddedRedis | EmbeddedS3, folder: Path, name: str, env: LocalEnv
) -> LocalEnv:
    """Write addresses and pid before the wait: an `up` that is killed leaves no unknown server."""
    folder.mkdir(parents=True, exist_ok=True)
    env.write(_env_file(folder))
    server.launch()
    try:
        ProcessRecord.of(server.pid).write(_pid_file(folder, name))
        server.wait_ready()
    except BaseException:
        server.stop()
        _pid_file(folder, name).unlink(missing_ok=True)
        raise
    log.info("%s is up (process %d)", name, server.pid)
    return env


def _redis(folder: Path, env: LocalEnv) -> EmbeddedRedis:
    return EmbeddedRedis(folder / REDIS, env.redis_port, env.redis_password, detached=True)


def _s3(folder: Path, env: LocalEnv) -> EmbeddedS3:
    return EmbeddedS3(
        folder / S3, env.s3_port, env.access_key, env.secret_key, env.bucket, detached=True
    )


def _running(folder: Path, name: str) -> ProcessRecord | None:
    record = ProcessRecord.read(_pid_file(folder, name))
    return record if record is not None and record.alive() else None


def _folder(settings: Settings) -> Path:
    return settings.state_dir.absolute() / "local"


def _env_file(folder: Path) -> Path:
    return folder / "local.env"


def _pid_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.pid"


def _exclusive(folder: Path) -> AbstractContextManager[None]:
    """Let one `up` or `down` run at a time; blocks, after a warning, while another one runs."""
    waiting = f"another `dflashq local` command works on {folder}; waiting for it"
    return held(folder / "local.lock", lambda: log.warning(waiting))
