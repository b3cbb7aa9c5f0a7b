"""Lock files: a lock that the kernel frees when its holder dies, however it dies (flock)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from dflashq.core.errors import DflashqError

_POLL_S = 0.2


class LockHeldError(DflashqError):
    """Another process has the lock; `holder` is its process id, or "unknown"."""

    def __init__(self, path: Path, holder: str) -> None:
        self.holder = holder
        super().__init__(f"process {holder} holds the lock {path}")


class FileLock:
    """One open lock file; the file itself stays. Leaving the context, or `close`, gives it back."""

    def __init__(self, path: Path, mode: int = 0o666) -> None:
        self._path = path
        self._handle = _open(path, mode)

    def share(self) -> None:
        """Hold it with others who share it. Blocks while somebody has it alone."""
        fcntl.flock(self._handle, fcntl.LOCK_SH)

    def hold(self) -> None:
        """Hold it alone. Blocks while anybody else has it."""
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    def try_hold(self) -> bool:
        """Hold it alone, or False at once when anybody else has it."""
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def claim(self) -> None:
        """Hold it alone and write this process's id into it; LockHeldError at once otherwise."""
        if not self.try_hold():
            holder = os.pread(self._handle, 32, 0).decode(errors="replace").strip()
            raise LockHeldError(self._path, holder or "unknown")
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Give it back. Safe to repeat."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def _open(path: Path, mode: int) -> int:
    """The file open for reading and writing, made with exactly `mode` when it is not there.

    First without O_CREAT: Linux refuses that for another user's file in a folder like /tmp
    (fs.protected_regular). And a umask must not keep other users from a lock that they share.
    """
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    if os.fstat(handle).st_uid == os.getuid():
        os.fchmod(handle, mode)
    return handle


@contextlib.contextmanager
def held(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock at `path` alone; blocks while another process has it, after one `on_wait()`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path) as lock:
        if not lock.try_hold():
            on_wait()
            while not lock.try_hold():
                time.sleep(_POLL_S)  # not a wait in the kernel: an interrupt must end it
        yield
