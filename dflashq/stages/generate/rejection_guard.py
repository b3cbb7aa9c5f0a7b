"""The breaker: a run that goes bad on this worker is paused, with a sentence."""

from __future__ import annotations

import logging
from functools import partial

from dflashq.blobs import runs
from dflashq.blobs.s3 import Blobs
from dflashq.core.errors import DflashqError
from dflashq.core.model import Guard
from dflashq.core.quality_guard import JudgedPrompt, RejectionWindow
from dflashq.ledger import Ledger
from dflashq.system.threads import OneShotThread

log = logging.getLogger(__name__)


class RejectionGuard:
    """One window a run. `note` is called from the loop's thread and never blocks."""

    def __init__(self, ledger: Ledger, blobs: Blobs) -> None:
        self._ledger, self._blobs = ledger, blobs
        self._windows: dict[str, RejectionWindow] = {}
        self._tolerated: dict[str, float] = {}

    def begin(self, run: str, guard: Guard) -> None:
        """A batch of this run begins: learn what a person has tolerated meanwhile. Blocks."""
        self._tolerated[run] = self._ledger.tolerated(run)
        self._windows.setdefault(run, RejectionWindow(guard))

    def note(self, run: str, judged: JudgedPrompt) -> None:
        """One prompt was generated and has its verdict; the run is paused if it is one too many."""
        tolerated = self._tolerated[run]
        objection = self._windows[run].objection(judged, tolerated)
        if objection:
            # One that cannot be started is told; the run's next window objects again.
            OneShotThread("breaker", partial(self._pause, run, objection, tolerated)).start()

    def _pause(self, run: str, objection: str, tolerated: float) -> None:
        sentence = (
            f"{objection}. What to do: see `dflashq status {run}`; go on as it is with "
            f"`dflashq resume {run} --accept`, or `dflashq cancel {run}`"
        )
        log.error("run paused: run=%s: %s", run, sentence)
        try:
            self._tolerated[run] = self._ledger.tolerated(run)
            # What a person has accepted since then is no objection any more.
            if self._tolerated[run] == tolerated and self._ledger.state(run) == "active":
                self._ledger.set_state(run, "paused", sentence)
                runs.write_state(self._blobs, run, "paused", sentence)
        except DflashqError as exc:
            log.error("run %s could not be paused, its next window will try again: %s", run, exc)
