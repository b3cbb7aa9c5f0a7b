"""What one check of `doctor` finds: ok, failed or skipped, with a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dflashq.core.errors import DflashqError

OK, FAILED, SKIPPED = "ok", "failed", "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: `state` is ok, failed or skipped; `says` what is there or what to do."""

    name: str
    state: str
    says: str


Check = Callable[[], str]


class SkippedCheck(DflashqError):
    """A check that does not apply here, and why."""


def found(name: str, check: Check) -> Finding:
    """Run one check: its sentence, or the sentence of the error it raised. Never raises one."""
    try:
        return Finding(name, OK, check())
    except SkippedCheck as exc:
        return Finding(name, SKIPPED, str(exc))
    except DflashqError as exc:
        return Finding(name, FAILED, str(exc))
