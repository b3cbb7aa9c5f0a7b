"""Waits for Redis and S3 when a worker starts or reconnects, unless somebody stops it."""

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

Result = TypeVar("Result")
PAUSE_S = 1.0
LOG_EVERY_S = 60.0
# Longer than a person or a tool needs to change a password on both sides.
PASSWORD_S = 60.0


def wait_out(
    call: Callable[[], Result], what: str, *, password_s: float | None = PASSWORD_S
) -> Result:
    """The result of `call`, which is repeated through outages and refusals of Redis and S3.

    Blocks; logs that `what` waits, first at once and then once a minute. A stop signal ends the
    worker meanwhile. Raises what waiting cannot mend: a password that is refused for `password_s`
    seconds (None: waits for ever), a request that S3 refuses, and every other error.
    """
    logged_s, refused_s = 0.0, 0.0
    cause: DflashqError
    while True:
        now = time.monotonic()
        try:
            return call()
        except LedgerPasswordError as exc:
            refused_s, cause = refused_s or now, exc
            if password_s is not None and time.monotonic() - refused_s >= password_s:
                raise
        except (LedgerUnreachableError, BlobError) as exc:
            refused_s, cause = 0.0, exc
            if isinstance(exc, BlobError) and not exc.transient:
                raise
        if not logged_s or now - logged_s >= LOG_EVERY_S:
            log.warning("%s waits: %s", what, cause)
            logged_s = now
        worker_state.maybe_shutdown()
        time.sleep(PAUSE_S)


def refuse_start(exc: DflashqError) -> NoReturn:
    """End the worker with the sentence and the exit code of `exc`, without a traceback."""
    log.critical("this worker does not start: %s", exc)
    sys.stderr.write(f"dflashq worker on {socket.gethostname()} does not start: {exc}\n")
    raise SystemExit(exc.exit_code)
