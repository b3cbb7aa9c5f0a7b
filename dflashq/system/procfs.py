"""What /proc says about processes. A pid is compared with its start: numbers are used again."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


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
    """True when the process of this pid and start has certainly ended, in our pid namespace.

    Signal 0 asks the kernel itself, since a /proc may hide the processes of other users.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # some process of another user has this pid
    fields = _stat(pid)
    return fields is not None and (fields[0] in "ZX" or int(fields[19]) != started)


def boot_id() -> str:
    """The id of this boot of the machine, the same in all its containers. OSError without /proc."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def pid_namespace() -> str:
    """The pid namespace of this process; "" where /proc is missing or shows another namespace."""
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
