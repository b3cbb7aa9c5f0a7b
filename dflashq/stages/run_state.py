"""The state of a run: in the ledger first, then its mirror on S3.

The mirror is what `reconcile` restores after Redis was lost, so it must never hold a state that
the ledger refused or has left since.
"""

from __future__ import annotations

import logging

from dflashq.blobs import runs
from dflashq.blobs.s3 import Blobs
from dflashq.core.errors import LedgerError
from dflashq.core.states import RunState
from dflashq.ledger import Ledger

log = logging.getLogger(__name__)


def set_run_state(ledger: Ledger, blobs: Blobs, run: str, state: RunState, reason: str) -> RunState:
    """Set the state of a run in the ledger and mirror it on S3; returns the state that now holds.

    That is another one where the run is cancelled, which is final: nothing is written then. Blocks
    on Redis and S3; safe to repeat. UnknownRunError and LedgerError: nothing was changed.
    BlobError: the ledger has the state and the mirror lacks it.
    """
    current = ledger.set_state(run, state, reason)
    if current == state:
        mirror_run_state(ledger, blobs, run, state, reason)
    return current


def mirror_run_state(ledger: Ledger, blobs: Blobs, run: str, state: RunState, reason: str) -> None:
    """Write a state that the ledger has taken to S3. Blocks; safe to repeat. BlobError.

    Two writers may reach S3 in another order than they reached the ledger. So each compares what it
    wrote with the ledger afterwards, and writes again where the ledger has moved on.
    """
    while True:
        runs.write_state(blobs, run, state, reason)
        try:
            current = ledger.state(run)
            if current in (state, RunState.UNKNOWN):
                return
            status = ledger.status(run)
        except LedgerError as exc:
            log.warning("the state on S3 was not compared with the ledger: run=%s: %s", run, exc)
            return
        state, reason = status.state, status.reason
