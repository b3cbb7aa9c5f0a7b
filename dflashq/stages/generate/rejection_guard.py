"""The rejection guard: a run of which this worker rejects too many prompts is paused."""

from __future__ import annotations

import logging
from functools import partial

from dflashq.blobs.s3 import Blobs
from dflashq.core.errors import BlobError, DflashqError
from dflashq.core.model import Guard
from dflashq.core.quality_guard import JudgedPrompt, RejectionWindow
from dflashq.core.states import RunState
from dflashq.ledger import Ledger
from dflashq.stages.run_state import set_run_state
from dflashq.system.threads import OneShotThread

log = logging.getLogger(__name__)


class RejectionGuard:
    """A window over the latest verdicts of each run. `note` is called from the event loop."""

    def __init__(self, ledger: Ledger, blobs: Blobs) -> None:
        self._ledger, self._blobs = ledger, blobs
        self._windows: dict[str, RejectionWindow] = {}
        self._tolerated: dict[str, float] = {}

    def begin(self, run: str, guard: Guard) -> None:
        """A batch of this run begins: read which share of rejections a person has tolerated.

        Blocks on Redis; safe to repeat. LedgerError.
        """
        self._tolerated[run] = self._ledger.tolerated(run)
        self._windows.setdefault(run, RejectionWindow(guard))

    def note(self, run: str, judged: JudgedPrompt) -> None:
        """Count the verdict on one prompt; a thread pauses the run when too many are rejected.

        Never blocks. KeyError before `begin`.
        """
        tolerated = self._tolerated[run]
        objection = self._windows[run].objection(judged, tolerated)
        if objection:
            # A thread that cannot be started is logged; the run's next window objects again.
            OneShotThread("breaker", partial(self._pause, run, objection, tolerated)).start()

    def _pause(self, run: str, objection: str, tolerated: float) -> None:
        sentence = (
            f"{objection}. What to do: see `dflashq status {run}`; go on as it is with "
            f"`dflashq resume {run} --accept`, or `dflashq cancel {run}`"
        )
        try:
            self._tolerated[run] = self._ledger.tolerated(run)
            # What a person has accepted since then is no objection any more.
            if self._tolerated[run] != tolerated or self._ledger.state(run) != RunState.ACTIVE:
                return
            log.error("run paused: run=%s: %s", run, sentence)
            set_run_state(self._ledger, self._blobs, run, RunState.PAUSED, sentence)
        except BlobError as exc:
            # The pause holds in the ledger; another ledger, rebuilt from S3, has other windows.
            log.warning("the pause is not mirrored on S3: run=%s: %s", run, exc)
        except DflashqError as exc:
            log.error("run %s could not be paused, its next window will try again: %s", run, exc)
