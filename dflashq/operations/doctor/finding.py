"""The finding of one check of `doctor`: ok, failed or skipped, with a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dflashq.core.errors import DflashqError

OK, FAILED, SKIPPED = "ok", "failed", "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a check: `state` is ok, failed or skipped, `says` is a sentence on it."""

    name: str
    state: str
    says: str


Check = Callable[[], str]


class SkippedCheck(DflashqError):
    """The check does not apply here; the sentence says why."""


def run_check(name: str, check: Check) -> Finding:
    """Run one check; the finding has its sentence, or that of the DflashqError that it raised."""
    try:
        return Finding(name, OK, check())
    except SkippedCheck as exc:
        return Finding(name, SKIPPED, str(exc))
    except DflashqError as exc:
        return Finding(name, FAILED, str(exc))
