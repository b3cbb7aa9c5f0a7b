"""What goes wrong with one run costs that run alone: for loops over all runs that never end."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from dflashq.core.errors import DflashqError, LedgerUnreachableError

log = logging.getLogger(__name__)


@contextlib.contextmanager
def contained(run: str, task: str) -> Iterator[None]:
    """Log a failure and go on with the next run; the caller's next look tries this one again.

    LedgerUnreachableError passes: without the ledger, no run is better off.
    """
    try:
        yield
    except LedgerUnreachableError:
        raise
    except DflashqError as exc:
        log.warning("put off for one run, the others go on: run=%s task=%s: %s", run, task, exc)
    except Exception:
        log.exception("a bug was met at one run, the others go on: run=%s task=%s", run, task)
