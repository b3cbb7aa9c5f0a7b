"""Free space on disks and in /dev/shm, checked before and while a worker runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from dflashq.config import Settings

FULL = 0.8
SHM = Path("/dev/shm")  # noqa: S108 - only its free space is read
GIB = 2**30


def full_places(settings: Settings) -> list[str]:
    """A sentence for each folder whose file system is 80 % full or more. Does not block.

    A folder that cannot be read is left out: whoever writes there gets the error.
    """
    return [
        f"{folder} is {used:.0%} full, at 80 % nothing new is begun: make room there"
        for folder, used in _used(settings)
        if used >= FULL
    ]


def room_left(folder: Path) -> int:
    """Bytes that may still be written before the folder's file system is 80 % full."""
    usage = shutil.disk_usage(existing(folder))
    return max(0, int(usage.total * FULL) - (usage.total - usage.free))


def existing(folder: Path) -> Path:
    """The folder itself, or the nearest parent that exists."""
    return next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())


def _used(settings: Settings) -> Iterator[tuple[Path, float]]:
    """Each file system once, by the first folder that lies on it, with the share that is used."""
    seen: set[int] = set()
    for folder in (settings.state_dir, settings.cache_dir, SHM):
        try:
            nearest = existing(folder)
            device, usage = nearest.stat().st_dev, shutil.disk_usage(nearest)
        except OSError:
            continue
        if device not in seen and usage.total:
            seen.add(device)
            # `free` is what an ordinary user may still write; what is left for root counts as used.
            yield folder, 1 - usage.free / usage.total
