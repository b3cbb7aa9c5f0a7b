"""The record of a server's process in a file: pid and start, since a pid may be used again."""

from __future__ import annotations

import json
import logging
import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from dflashq.core.errors import EmbeddedError
from dflashq.system import processes, procfs

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process group leader: its pid, its start in ticks since boot, and which boot that was."""

    pid: int
    start_time: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Self:
        """The record of a running process; EmbeddedError when it is gone already."""
        started = procfs.start_time(pid)
        if started is None:
            raise EmbeddedError(f"process {pid} ended before it could be written down")
        return cls(pid, started, procfs.boot_id())

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """What `write` wrote; None when there is nothing readable."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, path: Path) -> None:
        """Replace the file at `path`."""
        path.write_text(json.dumps(asdict(self)))

    def alive(self) -> bool:
        """True when this very process runs, not another one with its number."""
        return self.boot == procfs.boot_id() and procfs.start_time(self.pid) == self.start_time

    def stop(self, name: str, grace_s: float = 15.0) -> None:
        """SIGTERM, then SIGKILL to its group; blocks until gone. Nothing when it is not alive."""
        if not self.alive():
            return
        processes.signal_group(self.pid, signal.SIGTERM)
        if processes.wait_group_gone(self.pid, grace_s):
            return
        log.warning("%s ignored SIGTERM for %.0f s and is killed", name, grace_s)
        processes.signal_group(self.pid, signal.SIGKILL)
        if not processes.wait_group_gone(self.pid, grace_s):
            raise EmbeddedError(f"{name} (process {self.pid}) does not end, not even by SIGKILL")
