"""Rows written by the worker that commits a batch (DFLASHQ_ROWS_AT_ONCE)."""

from __future__ import annotations

import logging

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core.errors import DflashqError
from dflashq.core.stage_spec import ROWS
from dflashq.ledger import LeaseHeartbeat, Ledger
from dflashq.stages.request import request_stage
from dflashq.stages.rows.stage import RowsStage
from dflashq.stages.runner import StageRunner

log = logging.getLogger(__name__)


class RowsAtOnce:
    """The rows stage inside a worker of another stage; one batch at a time, for it has other work.

    What it does not get done stays pending in the ledger: it, another such worker or a worker
    started with --rows takes it later. Safe from many threads.
    """

    def __init__(
        self,
        settings: Settings,
        worker: str,
        ledger: Ledger,
        blobs: Blobs,
        heartbeat: LeaseHeartbeat,
        boot: str,
    ) -> None:
        self._ledger, self._blobs = ledger, blobs
        self._runner = StageRunner(
            RowsStage(ledger, blobs),
            settings.model_copy(update={"concurrency": 1}),
            worker,
            ledger,
            heartbeat,
            boot=boot,
        )

    def on_committed(self, run: str, batch: str) -> None:
        """Ask for the run's rows, and write those of this batch. Blocks; logs what goes wrong."""
        try:
            if self._ledger.state(run, ROWS.name) == "unknown":
                request_stage(self._ledger, self._blobs, run, ROWS)
            self._ledger.add(run, [batch], ROWS.name)
        except DflashqError as exc:
            log.warning("rows are not asked for: run=%s batch=%s: %s", run, batch, exc)
            return
        log.info("rows: %s", self._runner.process_hint(run, batch))

    def catch_up(self) -> None:
        """Begin the oldest batch that lacks its rows, unless one is at work. Does not block.

        LedgerError.
        """
        self._runner.claim_unhinted()

    def stop(self) -> None:
        """Claim nothing more, hand back what can be. Safe to repeat."""
        self._runner.drain(0.0)
