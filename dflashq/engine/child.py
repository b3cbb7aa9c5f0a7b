"""Run as a script: `child.py PARENT_PID COMMAND…` becomes COMMAND and dies with its parent.

It imports nothing of the package: it must start fast and in any environment. The death signal
belongs to the *thread* that started it, and survives exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def become(parent: int, command: list[str]) -> None:
    """Ask for SIGKILL at the parent's death, check that it still lives, exec `command`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"the parent-death signal was refused: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("the worker died while its engine was being started")
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command of the profile, no shell
    except OSError as exc:
        sys.exit(f"cannot run {command[0]}: {exc.strerror}")


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
