"""A lock file that lives as long as its holder: one builder, one `up` at a time."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_S = 0.2


@contextlib.contextmanager
def hold(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock at `path`; blocks while another process has it, after one `on_wait()`.

    The kernel frees it when the holder dies. The file itself stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        told = False
        while not _try(lock.fileno()):
            if not told:
                on_wait()
            told = True
            time.sleep(_POLL_S)
        yield


def _try(fileno: int) -> bool:
    try:
        fcntl.flock(fileno, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
