"""Loops over all runs that go on where one of the runs fails."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from dflashq.core.errors import DflashqError, LedgerUnreachableError

log = logging.getLogger(__name__)


@contextlib.contextmanager
def contained(run: str, task: str) -> Iterator[None]:
    """Log a failure of the body and swallow it, so that the caller goes on with the next run.

    LedgerUnreachableError passes: without the ledger, the other runs would fail as well.
    """
    try:
        yield
    except LedgerUnreachableError:
        raise
    except DflashqError as exc:
        log.warning("put off for one run, the others go on: run=%s task=%s: %s", run, task, exc)
    except Exception:
        log.exception("a bug was met at one run, the others go on: run=%s task=%s", run, task)
