"""Builds into the cache: one process builds at a time, and nothing half built is used."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from dflashq.core.errors import EmbeddedError
from dflashq.embedded.server_process import log_tail
from dflashq.system.file_lock import held

Echo = Callable[[str], None]
_ECHO_EVERY_S = 15.0


def sole_builder(target: Path, echo: Echo) -> AbstractContextManager[None]:
    """Hold the lock file beside `target`; blocks, after an `echo`, while another process has it."""
    waiting = f"{target.name}: another process is building it; waiting"
    return held(target.with_name(target.name + ".lock"), lambda: echo(waiting))


def run_step(what: str, argv: Sequence[str], log_file: Path, echo: Echo, **env: str) -> None:
    """Run one step of a build to its end; its output goes to `log_file`, its time to `echo`.

    `env` is added to this process's environment. Blocks. EmbeddedError with the end of the log when
    it fails. An interrupt ends the step as well.
    """
    began = time.monotonic()
    echo(f"{what} ...")
    with log_file.open("ab") as sink:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=os.environ | env
        )
    try:
        while (code := _wait(process)) is None:
            echo(f"{what} ... {time.monotonic() - began:.0f} s")
    finally:
        process.kill()  # does nothing once it has ended
        process.wait()
    if code != 0:
        raise EmbeddedError(
            f"{what} failed (exit code {code}); nothing half-built will be used. Try again when "
            f"the cause is gone. The end of its log {log_file}:\n{log_tail(log_file, 25)}"
        )
    echo(f"{what}: done in {time.monotonic() - began:.0f} s")


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_ECHO_EVERY_S)
    except subprocess.TimeoutExpired:
        return None
