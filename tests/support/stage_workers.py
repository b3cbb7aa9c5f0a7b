"""Worker processes without an engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dflashq.config import Settings
from tests.support.env import environment
from tests.support.paths import ROOT
from tests.support.wait import WAIT_S, wait_until


@dataclass
class StageWorkerHandle:
    """One `celery worker` of a stage, and where it logs."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Block until `condition()` is true; AssertionError with the log when the worker ends."""

        def holds() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return condition()

        wait_until(holds, what)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(WAIT_S)

    def stop(self) -> int:
        """SIGTERM, then the exit code."""
        self.process.terminate()
        return self.process.wait(WAIT_S)


@contextmanager
def stage_worker(
    settings: Settings, log: Path, *options: str, app: str = "workers"
) -> Iterator[StageWorkerHandle]:
    """Start a worker with `options`; it is gone at the end, whatever happened."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", app, "worker", *options],
            cwd=ROOT,
            env=environment(settings),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    worker = StageWorkerHandle(process, log)
    try:
        yield worker
    finally:
        worker.kill()
