"""Start an emulated engine as its own process, from a test."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import requests

from tests.support.paths import ROOT
from tests.support.wait import WAIT_S

# Also in the command line of every running emulator.
MODULE = __name__.rpartition(".")[0]


def is_emulator(process: psutil.Process) -> bool:
    """Whether this process is an engine emulator; psutil's errors when it has ended."""
    return MODULE in process.cmdline()


def arguments(**options: Any) -> list[str]:
    """Command line options of the emulator: `token_ms=5` is `--token-ms 5`.

    Dicts become JSON, True a bare flag; None and False are left out.
    """
    out: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            out.append(flag)
        else:
            out += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return out


class EmulatedEngine:
    """A running engine emulator; a context manager.

    `start` blocks until it listens. It is killed with the thread that started it. The options are
    those of `__main__`; with `wait=False` it may still be loading (or have exited) afterwards.
    """

    def __init__(self, port: int = 0, *, wait: bool = True, **options: Any) -> None:
        self._options = options
        self._wait = wait
        self._folder = tempfile.TemporaryDirectory(prefix="emulated-")
        self.log = Path(self._folder.name) / "log"
        self._port_file = Path(self._folder.name) / "port"
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, timeout_s: float = WAIT_S) -> Self:
        """Start and wait until it listens; RuntimeError with its log when it exits or is late."""
        self._port_file.unlink(missing_ok=True)
        argv = [sys.executable, "-m", MODULE, "--die-with-parent"]
        argv += arguments(port=self.port, port_file=self._port_file, **self._options)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, cwd=ROOT, stdout=log, stderr=log)
        if self._wait:
            self.wait_ready(timeout_s)
        return self

    def wait_ready(self, timeout_s: float = WAIT_S) -> None:
        """Block until it listens; RuntimeError with the log when it exits or takes too long."""
        assert self.process is not None
        deadline = time.monotonic() + timeout_s
        while not self._port_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the emulated engine did not start:\n{self.log.read_text()}")
            time.sleep(0.02)
        self.port = int(self._port_file.read_text())

    def stats(self) -> dict[str, Any]:
        """What `/stats` answers."""
        answer = requests.get(f"{self.url}/stats", headers=self._headers(), timeout=WAIT_S)
        answer.raise_for_status()
        body: dict[str, Any] = answer.json()
        return body

    def set_faults(self, **faults: Any) -> None:
        """Change the named faults from now on; without any, all are cleared."""
        method = "POST" if faults else "DELETE"
        answer = requests.request(
            method, f"{self.url}/faults", json=faults, headers=self._headers(), timeout=WAIT_S
        )
        answer.raise_for_status()

    def _headers(self) -> dict[str, str]:
        key = self._options.get("api_key")
        return {"Authorization": f"Bearer {key}"} if key else {}

    def stop(self, timeout_s: float = 10.0) -> int:
        """SIGTERM, then SIGKILL when requests still run after `timeout_s`; its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """SIGKILL; its exit status. Safe to repeat."""
        assert self.process is not None
        self.process.kill()
        return self.process.wait(WAIT_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._folder.cleanup()
