"""When finished work cannot be kept: the gate closes, for what is generated then is at risk."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from dflashq.core.errors import LedgerError, LedgerRefusedError

log = logging.getLogger(__name__)

# A failover of Redis takes a second or two; closing for that would only empty the engine.
PATIENCE_S = 5.0


class KeepBlockage:
    """Closes the gate once nothing could be kept for a while. Safe from many threads.

    `close` and `open_` take the reason, a sentence with Redis' words; they must not block.
    """

    def __init__(self, close: Callable[[str], None], open_: Callable[[str], None]) -> None:
        self._close, self._open = close, open_
        self._lock = threading.Lock()
        self._since: float | None = None
        self._reason = ""

    def failed(self, exc: LedgerError) -> None:
        """Nothing of what waits could be kept."""
        with self._lock:
            now = time.monotonic()
            if self._since is None:
                self._since = now
            if self._reason or now - self._since < PATIENCE_S:
                return
            words = exc.words if isinstance(exc, LedgerRefusedError) else str(exc)
            self._reason = f"finished work cannot be kept: {words}"
            log.error("the gate closes: %s", self._reason)
            self._close(self._reason)

    def end(self) -> None:
        """Something was kept, or nothing waits any more. Safe to repeat."""
        with self._lock:
            self._since = None
            if self._reason:
                log.info("the gate opens: finished work is kept again, or none waits any more")
                self._open(self._reason)
                self._reason = ""
