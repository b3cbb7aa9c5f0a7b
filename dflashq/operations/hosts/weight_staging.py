"""Weights in /dev/shm, one copy a host: its workers share it, the last one frees it.

A process that uses a staged model shares the lock on its lock file. The kernel drops the lock when
the process dies, in whatever way, so there is no count of users that could go wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from dflashq.core.errors import DflashqError
from dflashq.system.disk import GIB, SHM, room_left
from dflashq.system.file_lock import FileLock

Echo = Callable[[str], None]
COMPLETE = ".dflashq-staged"


@contextlib.contextmanager
def staged(model: Path, echo: Echo, shm: Path = SHM) -> Iterator[Path]:
    """Keep the model in memory during the context; yields its folder there.

    Copies the model unless a copy is there. Blocks for that, and while another process copies it.
    DflashqError when it does not fit.
    """
    place = _place(model, shm)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _sweep(place.parent)
    with _lock(place) as use:
        use.share()
        with _lock(place.with_suffix(".copying")) as copying:
            copying.hold()
            if not (place / COMPLETE).exists():
                _copy(model, place, echo)
        try:
            yield place
        finally:
            _free_if_last(place, use)


def _place(model: Path, shm: Path) -> Path:
    """The folder for this state of a model: another path, size or date means another copy."""
    files = sorted(path for path in model.rglob("*") if path.is_file())
    stats = [(str(f.relative_to(model)), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    digest = hashlib.sha256(repr((str(model.resolve()), stats)).encode()).hexdigest()[:12]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", model.name)
    return shm / f"dflashq-{os.getuid()}" / f"{name}-{digest}"


def _lock(place: Path) -> FileLock:
    return FileLock(place.with_suffix(place.suffix + ".lock"), mode=0o600)


def _copy(model: Path, place: Path, echo: Echo) -> None:
    files = [path for path in sorted(model.rglob("*")) if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    part = place.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    if size > (room := room_left(place.parent)):
        raise DflashqError(
            f"{model} ({size / GIB:.1f} GiB) does not fit into {place.parent}, which takes "
            f"{room / GIB:.1f} GiB more before it is 80 % full. Nothing was copied: make room, "
            "enlarge it, or do without --stage"
        )
    for number, path in enumerate(files, 1):
        echo(f"into memory: {path.name} ({number} of {len(files)})")
        target = part / path.relative_to(model)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    (part / COMPLETE).touch()
    part.rename(place)


def _free_if_last(place: Path, use: FileLock) -> None:
    """Delete the copy unless another process uses it: that one shares the lock."""
    if not use.try_hold():
        return
    gone = place.with_suffix(".gone")
    with contextlib.suppress(FileNotFoundError):
        place.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Delete copies that nobody uses: their last user was killed before it could do so."""
    for lock in folder.glob("*.lock"):
        place = lock.with_suffix("")
        if place.suffix != ".copying" and place.is_dir():
            with _lock(place) as use:
                _free_if_last(place, use)
