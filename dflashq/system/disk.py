"""Places that fill up: disks and /dev/shm, watched before and while a worker runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from dflashq.config import Settings

FULL = 0.8
SHM = Path("/dev/shm")  # noqa: S108 - a RAM disk that is looked at, not written to
GIB = 2**30


def full_places(settings: Settings) -> list[str]:
    """A sentence for each place that is 80 % full or more; none is well. Cheap enough for a clock.

    A place that cannot be asked is left out: whoever writes there hears of it.
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
    """The folder itself, or the nearest one above it that is there."""
    return next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())


def _used(settings: Settings) -> Iterator[tuple[Path, float]]:
    """Each file system once, under the name that it is known by here."""
    seen: set[int] = set()
    for folder in (settings.state_dir, settings.cache_dir, SHM):
        try:
            where = existing(folder)
            device, usage = where.stat().st_dev, shutil.disk_usage(where)
        except OSError:
            continue
        if device not in seen and usage.total:
            seen.add(device)
            # `free` is what an ordinary user may still write: the rest counts as used.
            yield folder, 1 - usage.free / usage.total
