"""Waiting for Redis and S3 where a worker begins or connects, until somebody stops it."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

from celery.worker import state as worker_state

from dflashq.core.errors import (
    BlobError,
    DflashqError,
    LedgerPasswordError,
    LedgerUnreachableError,
)

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
PAUSE_S = 1.0
TELL_S = 60.0
# Longer than a person or a tool needs to change a password here and there.
PASSWORD_S = 60.0


def wait_out(
    call: Callable[[], Answer], what: str, *, password_s: float | None = PASSWORD_S
) -> Answer:
    """Repeat `call` through outages and refusals of Redis and S3; `what` waits, for the log.

    Blocks. Told when it begins and once a minute. A stop signal ends the worker meanwhile. A
    password that is refused for `password_s` is raised, with None never; so is what S3 refuses.
    """
    told, locked_out = 0.0, 0.0
    waits_for: DflashqError
    while True:
        now = time.monotonic()
        try:
            return call()
        except LedgerPasswordError as exc:
            locked_out, waits_for = locked_out or now, exc
            if password_s is not None and time.monotonic() - locked_out >= password_s:
                raise
        except (LedgerUnreachableError, BlobError) as exc:
            locked_out, waits_for = 0.0, exc
            if isinstance(exc, BlobError) and not exc.transient:
                raise
        if not told or now - told >= TELL_S:
            log.warning("%s waits: %s", what, waits_for)
            told = now
        worker_state.maybe_shutdown()
        time.sleep(PAUSE_S)


def refuse_start(exc: DflashqError) -> NoReturn:
    """End the worker with a sentence instead of a traceback."""
    log.critical("this worker does not start: %s", exc)
    sys.stderr.write(f"dflashq worker on {socket.gethostname()} does not start: {exc}\n")
    raise SystemExit(exc.exit_code)
