"""What a worker checks of Redis and S3 before it takes its name: nothing is at work yet."""

from __future__ import annotations

import logging

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core.errors import LedgerError, UsageError
from dflashq.ledger import Ledger
from dflashq.ledger.connection import out_of_memory

log = logging.getLogger(__name__)


def check_services(settings: Settings, ledger: Ledger, blobs: Blobs) -> None:
    """DflashqError when Redis or S3 cannot carry a run. Blocks; safe to repeat."""
    version = _check_ledger(ledger)
    _check_keep_budget(settings, ledger)
    blobs.check_conditional_put("probes/")
    log.info("ledger: Redis %s; store: %r", version, blobs)


def _check_ledger(ledger: Ledger) -> str:
    """Redis' version; a full one is no reason to stay away, since commits make room."""
    try:
        return ledger.check()
    except LedgerError as exc:
        if not out_of_memory(exc):
            raise
        log.error("this worker starts on a full Redis, whose batches it may commit: %s", exc)
        return "without room"


def _check_keep_budget(settings: Settings, ledger: Ledger) -> None:
    """Kept work may fill half of Redis at most: the other half keeps the fleet going."""
    maximum = ledger.memory()[1]
    if maximum and settings.keep_budget_mb * 2**20 > maximum / 2:
        raise UsageError(
            f"DFLASHQ_KEEP_BUDGET_MB={settings.keep_budget_mb} is more than half of "
            f"Redis' maxmemory ({maximum // 2**20} MiB): lower the one or raise the other"
        )
