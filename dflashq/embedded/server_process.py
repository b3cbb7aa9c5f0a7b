"""One server process in a session and process group of its own, with its log in a file."""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dflashq.core.errors import EmbeddedError
from dflashq.system.processes import signal_group, spawn

log = logging.getLogger(__name__)

POLL_S = 0.05


def log_tail(path: Path, lines: int = 15) -> str:
    """The last `lines` lines of a log file; empty when there is no such file."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


class ServerProcess:
    """One server and its log file. Not thread-safe.

    A `detached` server outlives this process; any other is killed when the *thread* that called
    `start` ends.
    """

    def __init__(self, name: str, log_file: Path, *, detached: bool = False) -> None:
        self.name, self.log_file, self.detached = name, log_file, detached
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id, which is also the id of the process group. EmbeddedError before start."""
        if self._process is None:
            raise EmbeddedError(f"{self.name} was not started")
        return self._process.pid

    def start(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start `argv` with exactly the environment `env`. Does not wait until it is ready."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as sink:
            self._process = spawn(argv, env, sink, tied=not self.detached)

    def wait_ready(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Block until `ready()` is true; EmbeddedError when the server dies or `timeout_s` is over.

        Whatever is raised, also by `ready`, the server is stopped first.
        """
        deadline = time.monotonic() + timeout_s
        try:
            while not ready():
                self._check_alive()
                if time.monotonic() > deadline:
                    raise EmbeddedError(self._failure(f"was not ready within {timeout_s:.0f} s"))
                time.sleep(POLL_S)
            self._check_alive()
        except BaseException:
            self.stop()
            raise

    def _check_alive(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise EmbeddedError(self._failure(f"exited with {self._process.returncode}"))

    def _failure(self, what: str) -> str:
        return (
            f"{self.name} {what}; its data is untouched. "
            f"The end of its log {self.log_file}:\n{log_tail(self.log_file)}"
        )

    def kill(self) -> None:
        """SIGKILL to the whole group at once, as a crash would; blocks until it is gone."""
        if self._process is not None:
            signal_group(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM, then SIGKILL to the whole group; blocks until gone. Safe to repeat."""
        if self._process is None:
            return
        signal_group(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            log.warning("%s ignored SIGTERM for %.0f s and is killed", self.name, grace_s)
        self.kill()
