"""One worker process of this host, and how long to wait before it is started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from dflashq.core.backoff import delay_s
from dflashq.system.processes import spawn

USAGE, ENGINE_LOST, FRESH_START = 2, 70, 75
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
LOST_PAUSE_S, LOST_LONGEST_S = 60.0, 900.0
# A worker that lived for so long started well: its next death counts as the first.
SETTLED_S = 300.0
LOGS_KEPT, LOG_BYTES = 5, 50 * 2**20
TAIL_BYTES = 4096


def pause_s(code: int, deaths: int) -> float | None:
    """Seconds until a worker that exited with `code` is started again; None: never.

    `deaths` is how many there were in a row, this one included. Code 0 was asked for by somebody,
    2 is a wrong setting, 70 a lost engine, and with 75 a fresh process is all that is needed.
    """
    if code in (0, USAGE):
        return None
    if code == FRESH_START and deaths < 3:
        return 0.0
    first, longest = (
        (LOST_PAUSE_S, LOST_LONGEST_S) if code == ENGINE_LOST else (FIRST_PAUSE_S, LONGEST_PAUSE_S)
    )
    return delay_s(deaths, first, longest)


class WorkerProcess:
    """`celery -A workers worker` on one GPU ("" for none); it dies with the calling thread."""

    def __init__(self, name: str, gpu: str, profile: str, folder: Path) -> None:
        self.name, self.gpu, self._profile = name, gpu, profile
        self.log_file = folder / f"worker-{name}.log"
        self.deaths, self.restart_at = 0, 0.0
        self.over = False
        self._started_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return None if self._process is None else self._process.pid

    def start(self, now_s: float, environment: Mapping[str, str]) -> None:
        """Start it with exactly this environment; its output is appended to its log.

        `now_s` is on the monotonic clock, here and in `ended`.
        """
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        _rotate(self.log_file)
        celery = [sys.executable, "-m", "celery", "-A", "workers", "worker"]
        options = ["-n", f"{self.name}@%h", "--profile", self._profile, "--gpu", self.gpu]
        quiet = ["--loglevel", "INFO", "--without-gossip", "--without-mingle"]
        with self.log_file.open("ab") as sink:
            self._process = spawn([*celery, *options, *quiet], environment, sink)
        self._started_at = now_s

    def ended(self, now_s: float) -> int | None:
        """Its exit code, once, after it has ended, and plan the restart; None while it runs."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._process = None
        lived = now_s - self._started_at
        self.deaths = 1 if lived >= SETTLED_S else self.deaths + 1
        pause = pause_s(code, self.deaths)
        self.over = pause is None
        self.restart_at = now_s + (pause or 0.0)
        return code

    def signal(self, number: signal.Signals) -> None:
        """Signal the worker alone, never its group: the worker itself stops its engine."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def last_line(self) -> str:
        """The last line of its log that is not blank; "" when there is none."""
        try:
            with self.log_file.open("rb") as log:
                log.seek(max(0, self.log_file.stat().st_size - TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _rotate(log_file: Path) -> None:
    """Rename a log that has grown large to `.1`, the one before to `.2`; delete the oldest."""
    if not log_file.exists() or log_file.stat().st_size < LOG_BYTES:
        return
    for number in range(LOGS_KEPT - 1, 0, -1):
        older = log_file.with_suffix(f".log.{number}")
        if older.exists():
            older.replace(log_file.with_suffix(f".log.{number + 1}"))
    log_file.replace(log_file.with_suffix(".log.1"))
    log_file.with_suffix(f".log.{LOGS_KEPT}").unlink(missing_ok=True)
