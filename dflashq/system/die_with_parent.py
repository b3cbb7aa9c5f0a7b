"""A script that becomes another program, which dies with its parent: `PARENT_PID COMMAND...`.

It imports nothing of the package, so that it starts fast and in any environment. The kernel sends
the death signal when the *thread* that started it ends (prctl(2), PR_SET_PDEATHSIG); the setting
survives exec. Start it from a long-lived thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def become(parent: int, command: list[str]) -> None:
    """Ask for SIGKILL at the parent's death, check that the parent still lives, exec `command`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"cannot tie {command[0]} to its parent: {os.strerror(ctypes.get_errno())}")
    # A parent that died before the call above causes no signal.
    if os.getppid() != parent:
        sys.exit(f"the parent of {command[0]} died while it was being started")
    try:
        os.execvp(command[0], command)  # noqa: S606 - the caller's own command, no shell
    except OSError as exc:
        sys.exit(f"cannot run {command[0]}: {exc.strerror}")


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
