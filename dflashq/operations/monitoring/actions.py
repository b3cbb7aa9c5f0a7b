"""What a person does to a run from the page: done, and told in the feed with who did it."""

from __future__ import annotations

import logging
import threading
from functools import partial

from dflashq.blobs.s3 import Blobs
from dflashq.core.errors import DflashqError, UsageError
from dflashq.core.humanize import counted
from dflashq.ledger import Hints, Ledger
from dflashq.ledger.monitor_store import MonitorStore
from dflashq.operations.monitoring.events import event
from dflashq.operations.runs import control
from dflashq.operations.runs.backfill import BackfillResult, rerun_rejected, revive
from dflashq.system.threads import OneShotThread

log = logging.getLogger(__name__)

REASON_AT_MOST = 500


class RunActions:
    """Every verb blocks on Redis and S3, and raises DflashqError when it was not done."""

    def __init__(self, ledger: Ledger, blobs: Blobs, hints: Hints, store: MonitorStore) -> None:
        self._ledger, self._blobs, self._hints = ledger, blobs, hints
        self._store = store
        self._running: dict[str, OneShotThread] = {}
        self._starting = threading.Lock()

    def pause(self, run: str, who: str, reason: str) -> str:
        """The workers hand its batches back; returns the sentence that the feed has."""
        why = _clean(reason)
        control.pause(self._ledger, self._blobs, run, why)
        return self._tell(run, who, "paused the run" + (f": {why}" if why else ""), "paused")

    def resume(self, run: str, who: str, *, accept: bool) -> str:
        """Go on; `accept` takes the rejections, or a canary that is dead, as they are."""
        done = control.resume(self._ledger, self._blobs, self._hints, run, accept=accept)
        return self._tell(run, who, f"resumed the run: {done.clause}", "active")

    def cancel(self, run: str, who: str, reason: str) -> str:
        """End it for good."""
        why = _clean(reason)
        control.cancel(self._ledger, self._blobs, run, why)
        text = "cancelled the run for good" + (f": {why}" if why else "")
        return self._tell(run, who, text, "cancelled")

    def revive(self, run: str, who: str) -> str:
        """Put the dead batches back to work."""
        done = revive(self._ledger, self._hints, run)
        text = f"put {counted(len(done.revived), 'dead batch')} back to work"
        paused = "; the run is paused, so it begins when somebody resumes it"
        return self._tell(run, who, text + (paused if done.state == control.PAUSED else ""))

    def rerun(self, run: str, who: str, reason: str | None) -> str:
        """Run rejected prompts again, in a thread: it reads every committed batch.

        UsageError while one of this run is under way. Its end, good or bad, is told in the feed.
        """
        which = f"rejected prompts ({reason})" if reason else "all rejected prompts"
        with self._starting:
            if (thread := self._running.get(run)) is not None and thread.alive:
                raise UsageError(f"rejected prompts of run {run!r} are being put back already")
            told = self._tell(run, who, f"began to put {which} back to work")
            work = partial(self._rerun, run, who, reason)
            self._running[run] = OneShotThread("rerun", work, label=run)
            if not self._running[run].start():
                raise DflashqError("this host has no thread left for it: nothing was put back")
        return told

    def _rerun(self, run: str, who: str, reason: str | None) -> None:
        try:
            done = rerun_rejected(self._ledger, self._blobs, self._hints, run, reason)
            self._tell(run, who, _put_back(done))
        except DflashqError as exc:
            log.error("rejected prompts were not put back: run=%s: %s", run, exc)
            self._tell_failure(run, who, exc)
        except Exception as exc:
            # Whoever asked for it waits for an end in the feed; the thread tells the rest.
            error = f"an error of dflashq's own ({type(exc).__name__}), see the monitor's log"
            self._tell_failure(run, who, DflashqError(error))
            raise

    def _tell_failure(self, run: str, who: str, failure: DflashqError) -> None:
        try:
            self._tell(run, who, f"could not put them back: {failure}")
        except DflashqError as exc:
            log.warning("the feed was not told: %s", exc)

    def _tell(self, run: str, who: str, what: str, state: str = "") -> str:
        text = f"{who} {what}" + ("" if what.endswith((".", "!", "?")) else ".")
        more = {"state": state} if state else {}
        now_ms = int(self._ledger.now_s() * 1000)
        log.info("%s run=%s", text, run)
        self._store.tell(run, [event(now_ms, "action", text, who, **more)])
        return text


def _clean(reason: str) -> str:
    return " ".join(reason.split())[:REASON_AT_MOST]


def _put_back(done: BackfillResult) -> str:
    if not done.revisions:
        return "found no rejected prompt that is not on its way already"
    prompts = counted(done.prompts, "rejected prompt")
    return f"put {prompts} back to work in {counted(len(done.revisions), 'revision')}"
