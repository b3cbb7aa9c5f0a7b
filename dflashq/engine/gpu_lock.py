"""One engine per GPU: a lock file that every worker of the host uses."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
from pathlib import Path

from dflashq.core.errors import EngineError


class GpuLock:
    """An exclusive lock on one GPU of this host; the kernel frees it when its process ends.

    `gpu` is an index or a UUID; both lead to the same lock. With an empty `gpu` nothing is locked.
    """

    def __init__(self, lock_dir: Path, gpu: str) -> None:
        self._lock_dir, self._gpu = lock_dir, gpu
        self._handle: int | None = None

    def acquire(self) -> None:
        """Take the lock without waiting. Safe to repeat.

        EngineError, with the process id of the holder, when another process has it.
        """
        if not self._gpu or self._handle is not None:
            return
        path = self._path()
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 32, 0).decode().strip() or "unknown"
            os.close(handle)
            raise EngineError(
                f"GPU {self._gpu} already has a worker (process {holder}); nothing was started. "
                "Give this worker another GPU with DFLASHQ_GPU."
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._handle = handle

    def release(self) -> None:
        """Free the lock. Safe to repeat."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _path(self) -> Path:
        if not self._lock_dir.is_dir():
            self._lock_dir.mkdir(parents=True, exist_ok=True)
            # Every user's workers need the folder; another user may just have created it.
            with contextlib.suppress(PermissionError):
                self._lock_dir.chmod(0o1777)
        name = re.sub(r"[^A-Za-z0-9-]+", "-", gpu_uuid(self._gpu))
        return self._lock_dir / f"gpu-{name}.lock"


def gpu_uuid(gpu: str) -> str:
    """The UUID of a GPU; `gpu` itself on a host without nvidia-smi. Blocks up to 20 seconds."""
    return _nvidia_smi(gpu, "uuid") or gpu


def gpu_memory_used_mib(gpu: str) -> int | None:
    """The memory in use on the GPU, in MiB; None without a GPU or nvidia-smi. Blocks."""
    answer = _nvidia_smi(gpu, "memory.used") if gpu else ""
    return int(answer) if answer.isdigit() else None


def _nvidia_smi(gpu: str, field: str) -> str:
    command = ["nvidia-smi", "-i", gpu, f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
