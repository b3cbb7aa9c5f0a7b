"""What /proc says about processes and their groups: a recycled pid is never taken for ours."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

_PROC = Path("/proc")
_POLL_S = 0.05


def _stat(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The command name may hold spaces and brackets: the fields start behind its last bracket.
    return text.rpartition(")")[2].split()


def start_time(pid: int) -> int | None:
    """Start of a running process in clock ticks since boot; None when gone or a zombie."""
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return int(fields[19])


def ended(pid: int, started: int) -> bool:
    """True when the process with this pid and start has certainly ended, in our pid namespace.

    The signal that is none asks the kernel itself: a /proc that hides the processes of other users
    proves nothing.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # there is one, of another user: is it the same?
    fields = _stat(pid)
    return fields is not None and (fields[0] in "ZX" or int(fields[19]) != started)


def boot_id() -> str:
    """Changes with every boot of the machine; the same in all its containers."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> str:
    """Which pid namespace this process counts in; empty where /proc shows another one, or none."""
    try:
        if os.readlink(_PROC / "self") != str(os.getpid()):
            return ""
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return ""


def group_members(group: int) -> list[int]:
    """Pids of the living (not zombie) processes of a process group."""
    pids = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    stats = ((pid, _stat(pid)) for pid in pids)
    return [pid for pid, f in stats if f is not None and f[0] not in "ZX" and int(f[2]) == group]


def signal_group(group: int, signum: signal.Signals) -> None:
    """Send `signum` to a whole process group; a group that is gone is no error."""
    try:
        os.killpg(group, signum)
    except ProcessLookupError:
        return


def wait_group_gone(group: int, timeout_s: float) -> bool:
    """Block until no process of the group lives; False when some still do after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while group_members(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
