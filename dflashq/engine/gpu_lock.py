"""One engine a GPU: a lock that every worker of the host sees."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from dflashq.core.errors import EngineError
from dflashq.system import nvidia_smi
from dflashq.system.file_lock import FileLock, LockHeldError


class GpuLock:
    """An exclusive lock on one GPU of this host, gone with the process that holds it.

    `gpu` is an index or a UUID, both leading to the same lock; without a GPU there is none.
    """

    def __init__(self, lock_dir: Path, gpu: str) -> None:
        self._lock_dir, self._gpu = lock_dir, gpu
        self._lock: FileLock | None = None

    def acquire(self) -> None:
        """Take the lock without waiting; EngineError names the holder. Safe to repeat."""
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
            # Workers of several users may share the host; the folder may be another's by now.
            with contextlib.suppress(PermissionError):
                self._lock_dir.chmod(0o1777)
        name = re.sub(r"[^A-Za-z0-9-]+", "-", gpu_uuid(self._gpu))
        return self._lock_dir / f"gpu-{name}.lock"


def gpu_uuid(gpu: str) -> str:
    """The UUID of a GPU, or `gpu` itself on a host without nvidia-smi. Blocks."""
    return nvidia_smi.value("uuid", gpu) or gpu


def gpu_memory_used_mb(gpu: str) -> int | None:
    """Memory in use on the GPU in MiB; None when it cannot be told. Blocks."""
    answer = nvidia_smi.value("memory.used", gpu) if gpu else ""
    return int(answer) if answer.isdigit() else None
