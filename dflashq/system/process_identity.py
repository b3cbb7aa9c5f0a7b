"""Identifies this process as one boot of a worker, and proves that another process has ended."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from typing import Any

from dflashq.core.worker_identity import ProcessIdentity, WorkerBoot
from dflashq.system import procfs


def new_boot(name: str) -> WorkerBoot:
    """A boot of the worker `name` on this host, unlike any before. Does not block."""
    token = secrets.token_hex(4)
    try:
        host_id = procfs.boot_id()
    except OSError:
        # Unlike any other, so that no process is taken for one of this host.
        host_id = f"unknown-{secrets.token_hex(8)}"
    started_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return WorkerBoot(name, host_id, started_ms, token)


def own_process() -> ProcessIdentity:
    """This process, in the terms by which others of its pid namespace can look for it."""
    pid = os.getpid()
    return ProcessIdentity(pid, procfs.pid_namespace(), procfs.start_time(pid) or 0)


def proved_gone(row: Mapping[str, Any], boot: WorkerBoot) -> bool:
    """Whether the worker that announced `row` has certainly ended, as seen from `boot`.

    Only a process of this host and of this pid namespace can be looked for; of any other, and of
    a row that does not name its process, the answer is False: it may live. Does not block.
    """
    other = WorkerBoot.parse(boot.name, str(row.get("boot", "")))
    process = ProcessIdentity.from_row(row)
    if other is None or process is None or other.host_id != boot.host_id:
        return False
    if process.pid_namespace != procfs.pid_namespace():
        return False
    return procfs.ended(process.pid, process.start_ticks)
