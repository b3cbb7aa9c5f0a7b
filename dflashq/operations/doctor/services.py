"""The checks of Redis, S3, the clock and the disks: a finding is ok or says what to do."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core.errors import DflashqError
from dflashq.ledger import Ledger
from dflashq.operations.doctor.finding import OK, SKIPPED, Check, Finding, run_check
from dflashq.system import disk
from dflashq.system.disk import GIB

LEAST_FREE = 2 * GIB
# S3 refuses requests signed more than 15 min off; leases live on the ledger's clock alone.
MOST_SKEW_S = 60.0


def services(settings: Settings) -> Iterator[Finding]:
    """Check Redis and S3 by writing probes, which are removed. Blocks. Safe to repeat."""
    ledger = Ledger(settings)
    redis = run_check("redis", lambda: f"{ledger.check()}: reads, writes{_fsync(settings)}")
    yield redis
    yield run_check("s3", lambda: _s3(settings))
    if redis.state == OK:
        yield run_check("clock", lambda: _clock(ledger))
    else:
        yield Finding("clock", SKIPPED, "compared with the clock of Redis, which is not reached")


def machine(settings: Settings) -> Iterator[Finding]:
    """Check the free space where dflashq keeps its files."""
    for name, folder in (("state_dir", settings.state_dir), ("cache_dir", settings.cache_dir)):
        yield run_check(f"disk of {name}", _disk_check(name, folder))


def _fsync(settings: Settings) -> str:
    return ", on disk when acknowledged" if settings.keep_fsync else ""


def _s3(settings: Settings) -> str:
    blobs = Blobs(settings)
    blobs.check_conditional_put("probes/")
    return f"{blobs!r}: of 16 racing conditional puts one won"


def _clock(ledger: Ledger) -> str:
    skew = time.time() - ledger.now_s()
    if abs(skew) > MOST_SKEW_S:
        raise DflashqError(
            f"this machine's clock and that of Redis are {abs(skew):.0f} s apart: set them (NTP), "
            "S3 refuses requests from a clock that is off"
        )
    return f"within {max(1, round(abs(skew)))} s of that of Redis"


def _disk_check(name: str, folder: Path) -> Check:
    def check() -> str:
        free = shutil.disk_usage(disk.existing(folder)).free
        if free < LEAST_FREE:
            raise DflashqError(
                f"{folder} has {free / GIB:.1f} GiB free, less than {LEAST_FREE // GIB}: make "
                f"room, or set DFLASHQ_{name.upper()} to another disk"
            )
        return f"{folder} has {free / GIB:,.0f} GiB free"

    return check
