"""What a person does to a run from the page: it is done, and the feed says who did it."""

from __future__ import annotations

import logging
import threading
from functools import partial

from dflashq.blobs.s3 import Blobs
from dflashq.core.errors import DflashqError, UsageError
from dflashq.core.humanize import counted
from dflashq.core.states import RunState
from dflashq.ledger import Hints, Ledger
from dflashq.ledger.monitor_store import MonitorStore
from dflashq.operations.monitoring.events import event
from dflashq.operations.runs import control
from dflashq.operations.runs.backfill import BackfillResult, rerun_rejected, revive
from dflashq.system.threads import OneShotThread

log = logging.getLogger(__name__)

REASON_AT_MOST = 500  # characters


class RunActions:
    """The actions of a page's user, the `actor`; each returns the sentence that the feed has.

    Every action blocks on Redis and S3, is safe to repeat, and raises DflashqError when it was not
    done.
    """

    def __init__(self, ledger: Ledger, blobs: Blobs, hints: Hints, store: MonitorStore) -> None:
        self._ledger, self._blobs, self._hints = ledger, blobs, hints
        self._store = store
        self._running: dict[str, OneShotThread] = {}
        self._starting = threading.Lock()

    def pause(self, run: str, actor: str, reason: str) -> str:
        """Pause the run: its workers hand their batches back."""
        why = _one_line(reason)
        control.pause(self._ledger, self._blobs, run, why)
        text = "paused the run" + (f": {why}" if why else "")
        return self._publish(run, actor, text, RunState.PAUSED)

    def resume(self, run: str, actor: str, *, accept: bool) -> str:
        """Let the run go on; with `accept`, despite its rejections or its dead canary."""
        result = control.resume(self._ledger, self._blobs, self._hints, run, accept=accept)
        return self._publish(run, actor, f"resumed the run: {result.clause}", RunState.ACTIVE)

    def cancel(self, run: str, actor: str, reason: str) -> str:
        """End the run for good."""
        why = _one_line(reason)
        control.cancel(self._ledger, self._blobs, run, why)
        text = "cancelled the run for good" + (f": {why}" if why else "")
        return self._publish(run, actor, text, RunState.CANCELLED)

    def revive(self, run: str, actor: str) -> str:
        """Put the dead batches back to work."""
        result = revive(self._ledger, self._hints, run)
        text = f"put {counted(len(result.revived), 'dead batch')} back to work"
        paused = "; the run is paused, so it begins when somebody resumes it"
        return self._publish(run, actor, text + (paused if result.state == RunState.PAUSED else ""))

    def rerun(self, run: str, actor: str, reason: str | None) -> str:
        """Start to run rejected prompts again, those with `reason` or all.

        A thread does it, since it reads every committed batch; the feed says how it ended.
        UsageError while such a thread of this run is at work.
        """
        which = f"rejected prompts ({reason})" if reason else "all rejected prompts"
        with self._starting:
            if (thread := self._running.get(run)) is not None and thread.alive:
                raise UsageError(f"rejected prompts of run {run!r} are being put back already")
            sentence = self._publish(run, actor, f"began to put {which} back to work")
            work = partial(self._rerun, run, actor, reason)
            self._running[run] = OneShotThread("rerun", work, label=run)
            if not self._running[run].start():
                raise DflashqError("this host has no thread left for it: nothing was put back")
        return sentence

    def _rerun(self, run: str, actor: str, reason: str | None) -> None:
        try:
            result = rerun_rejected(self._ledger, self._blobs, self._hints, run, reason)
            self._publish(run, actor, _rerun_text(result))
        except DflashqError as exc:
            log.error("rejected prompts were not put back: run=%s: %s", run, exc)
            self._publish_failure(run, actor, exc)
        except Exception as exc:
            # The actor waits for an end in the feed; the thread logs the traceback.
            error = f"an error of dflashq's own ({type(exc).__name__}), see the monitor's log"
            self._publish_failure(run, actor, DflashqError(error))
            raise

    def _publish_failure(self, run: str, actor: str, failure: DflashqError) -> None:
        try:
            self._publish(run, actor, f"could not put them back: {failure}")
        except DflashqError as exc:
            log.warning("the feed lacks that an action failed: %s", exc)

    def _publish(self, run: str, actor: str, what: str, state: str = "") -> str:
        """Log an action and append it to the feed; `state` is the run's where it was changed."""
        text = f"{actor} {what}" + ("" if what.endswith((".", "!", "?")) else ".")
        more = {"state": state} if state else {}
        now_ms = int(self._ledger.now_s() * 1000)
        log.info("%s run=%s", text, run)
        self._store.append_events(run, [event(now_ms, "action", text, actor, **more)])
        return text


def _one_line(reason: str) -> str:
    return " ".join(reason.split())[:REASON_AT_MOST]


def _rerun_text(result: BackfillResult) -> str:
    if not result.revisions:
        return "found no rejected prompt that is not on its way already"
    prompts = counted(result.prompts, "rejected prompt")
    return f"put {prompts} back to work in {counted(len(result.revisions), 'revision')}"
