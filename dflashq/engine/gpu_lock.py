"""One engine per GPU: a lock file that every worker of the host uses."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from dflashq.core.errors import EngineError
from dflashq.system import nvidia_smi
from dflashq.system.file_lock import FileLock, LockHeldError


class GpuLock:
    """An exclusive lock on one GPU of this host; the kernel frees it when its process ends.

    `gpu` is an index or a UUID; both lead to the same lock. With an empty `gpu` nothing is locked.
    """

    def __init__(self, lock_dir: Path, gpu: str) -> None:
        self._lock_dir, self._gpu = lock_dir, gpu
        self._lock: FileLock | None = None

    def acquire(self) -> None:
        """Take the lock without waiting. Safe to repeat.

        EngineError, with the process id of the holder, when another process has it.
        """
        if not self._gpu or self._lock is not None:
            return
        lock = FileLock(self._path())
        try:
            lock.claim()
        except LockHeldError as exc:
            lock.close()
            raise EngineError(
                f"GPU {self._gpu} already has a worker (process {exc.holder}); nothing was "
                "started. Give this worker another GPU with DFLASHQ_GPU."
            ) from None
        self._lock = lock

    def release(self) -> None:
        """Give the GPU back. Safe to repeat."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _path(self) -> Path:
        if not self._lock_dir.is_dir():
            self._lock_dir.mkdir(parents=True, exist_ok=True)
            # Every user's workers need the folder; another user may just have created it.
            with contextlib.suppress(PermissionError):
                self._lock_dir.chmod(0o1777)
        name = re.sub(r"[^A-Za-z0-9-]+", "-", gpu_uuid(self._gpu))
        return self._lock_dir / f"gpu-{name}.lock"


def gpu_uuid(gpu: str) -> str:
    """The UUID of a GPU, or `gpu` itself on a host without nvidia-smi. Blocks."""
    return nvidia_smi.value("uuid", gpu) or gpu


def gpu_memory_used_mib(gpu: str) -> int | None:
    """The memory in use on the GPU, in MiB; None without a GPU or nvidia-smi. Blocks."""
    answer = nvidia_smi.value("memory.used", gpu) if gpu else ""
    return int(answer) if answer.isdigit() else None
