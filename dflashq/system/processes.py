"""Processes and ports: started tied to us, ended as a group, nothing left behind."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from dflashq.core.errors import EngineError
from dflashq.system import die_with_parent

# Below the range that Linux gives to outgoing connections.
_PORTS = range(20_000, 32_000)
_POLL_S = 0.05
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
    return _until(lambda: not group_members(process.pid), 30.0)


def group_members(group: int) -> list[int]:
    """Living processes of a process group; zombies are not counted."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name in brackets may hold anything, so read what follows it: state, parent, group.
            state, _, member_of = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(member_of) == group and state not in "ZX":
            found.append(int(entry.name))
    return found


def port_is_free(port: int) -> bool:
    """True when a server could listen on the port now, on every address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - a probe; it never listens
        except OSError:
            return False
    return True


def pick_port(candidates: Iterable[int] | None = None, *, but: frozenset[int] = frozenset()) -> int:
    """A port that is free now and not in `but`; EngineError when none of 200 was.

    Servers bind it only minutes later, so a start that fails is tried again on another one.
    """
    tried = candidates if candidates is not None else random.sample(_PORTS, 200)
    for port in tried:
        if port not in but and port_is_free(port):
            return port
    raise EngineError("no free TCP port was found for the engine; nothing was started.")


def _until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
