"""Child processes: they die with the thread that started them, and end as a group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from dflashq.system import die_with_parent
from dflashq.system.procfs import wait_group_gone

_POLL_S = 0.05
_GROUP_S = 30.0
_SECRETS = ("DFLASHQ_", "AWS_")


def spawn(argv: Sequence[str], env: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start `argv` in a session of its own; it is killed when the *calling thread* ends.

    `env` is added to ours, without our own settings: an engine needs no password of ours, and
    it dumps its environment when it crashes.
    """
    own = {k: v for k, v in os.environ.items() if not k.startswith(_SECRETS)}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(die_with_parent.__file__), str(os.getpid()), *argv],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=own | {"PYTHONUNBUFFERED": "1"} | dict(env),
        start_new_session=True,
    )


def has_exited(process: subprocess.Popen[bytes]) -> bool:
    """True when the process ended. It stays a zombie, so that its group keeps its number."""
    if process.returncode is not None:
        return True
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, flags) is not None


def end(process: subprocess.Popen[bytes], grace_s: float) -> bool:
    """End a process and its group: SIGTERM to the process alone, then SIGKILL to all.

    Signals to the group would bypass the server's own shutdown. Blocks at most `grace_s` + 30 s;
    False when a member of the group still lives then. Safe to repeat.
    """
    if process.returncode is not None:
        return True
    if grace_s > 0 and not has_exited(process):
        os.kill(process.pid, signal.SIGTERM)
        _until(lambda: has_exited(process), grace_s)
    # The leader is not reaped yet, so the group is still its own.
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return wait_group_gone(process.pid, _GROUP_S)


def _until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
