"""Run as a script: `tied.py PARENT_PID COMMAND...` becomes COMMAND, and dies with its parent.

The death signal follows the thread that started the process, so start it from a long-lived one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for SIGKILL at the parent's death, then become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"cannot tie {command[0]} to its parent: {os.strerror(ctypes.get_errno())}")
    # The parent may have died before the call above: then nobody would send the signal.
    if os.getppid() != parent:
        sys.exit(f"the parent of {command[0]} is gone")
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
