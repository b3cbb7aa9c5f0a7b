"""Child processes, which end with the thread that started them, and their process groups."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from dflashq.system import die_with_parent, procfs

_POLL_S = 0.05
_GROUP_S = 30.0
_SECRETS = ("DFLASHQ_", "AWS_")


def spawn(
    argv: Sequence[str], env: Mapping[str, str], log: IO[bytes], *, tied: bool = True
) -> subprocess.Popen[bytes]:
    """Start `argv` with exactly the environment `env`, in a session and process group of its own.

    Standard output and errors go to `log`, a file. A `tied` process is killed when the *thread*
    that called this ends; any other outlives this process. Does not wait for it.
    """
    script = str(die_with_parent.__file__)
    prefix = [sys.executable, "-I", "-S", script, str(os.getpid())] if tied else []
    return subprocess.Popen(
        [*prefix, *argv],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def spawn_without_secrets(
    argv: Sequence[str], env: Mapping[str, str], log: IO[bytes]
) -> subprocess.Popen[bytes]:
    """`spawn` with `env` on top of this process's environment, dflashq's own settings left out.

    An engine needs none of our passwords, and dumps its environment when it crashes.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_SECRETS)}
    return spawn(argv, inherited | {"PYTHONUNBUFFERED": "1"} | dict(env), log)


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
        _wait_until(lambda: has_exited(process), grace_s)
    # The leader is not reaped yet, so the group is still its own.
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return wait_group_gone(process.pid, _GROUP_S)


def signal_group(group: int, signum: signal.Signals) -> None:
    """Send `signum` to a whole process group; a group that is gone is no error."""
    try:
        os.killpg(group, signum)
    except ProcessLookupError:
        return


def wait_group_gone(group: int, timeout_s: float) -> bool:
    """Block until no process of the group lives; False when some still do after `timeout_s`."""
    return _wait_until(lambda: not procfs.group_members(group), timeout_s)


def _wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
