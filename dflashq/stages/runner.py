"""The runner: from a hint to a committed batch, whatever the stage."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from dflashq.config import Settings
from dflashq.core import metrics
from dflashq.core.errors import (
    ConflictError,
    DflashqError,
    EngineMismatchError,
    LeaseLostError,
    LedgerError,
    NewerFormatError,
)
from dflashq.ledger import Lease, LeaseHeartbeat, Ledger
from dflashq.ledger.models import Claim
from dflashq.stages.attempt import DRAIN, SICK, Attempt, HandOverError, StoppedError
from dflashq.stages.base import Stage
from dflashq.stages.peers import healthy_peers
from dflashq.system.threads import OneShotThread

log = logging.getLogger(__name__)

FLUSH_S = 10.0
DRAINING = "draining"
UNKNOWN = "unknown"
AVOID_S = 600.0  # so long a batch that should be tried on another engine is left to others


class StageRunner:
    """Works on the batches of one stage; `process_hint` runs in as many threads as batches overlap.

    `hints_taken` counts the hints taken so far, for whoever watches the consumer; `refused` says,
    by run, why this engine may not work on it; `peers` are the healthy workers that serve the same
    queue, as they were seen last, with the runs that each refuses. `on_committed` is called with
    run and batch, in the thread that committed it, which it may block.
    """

    def __init__(
        self,
        stage: Stage,
        settings: Settings,
        worker: str,
        ledger: Ledger,
        heartbeat: LeaseHeartbeat,
        *,
        queue: str = "",
        boot: str = "",
        on_committed: Callable[[str, str], object] = lambda run, batch: None,
    ) -> None:
        self.settings, self.hints_taken = settings, 0
        self.queue = queue or stage.spec.queue
        self._stage, self._worker, self._boot = stage, worker, boot
        self._ledger, self._heartbeat = ledger, heartbeat
        self._on_committed = on_committed
        self._orders = itertools.count()
        self._active: set[Attempt] = set()
        self._changed = threading.Condition()
        self.refused: dict[str, str] = {}
        self.peers: dict[str, frozenset[str]] = {}
        self._avoid: dict[tuple[str, str], float] = {}
        self.draining = threading.Event()

    def process_hint(self, run: str, batch: str) -> str:
        """Work on the hinted batch, or on the oldest pending one there is. Blocks until its end.

        Returns what became of the hint, for the log. Never raises for a batch that failed: its
        story is in the ledger.
        """
        self.hints_taken += 1
        if self._withdrawn():
            # The hint is published again by the next sweep: nobody need take it before.
            self.draining.wait(self.settings.sweep_s)
            return "left to healthy workers: the engine is sick"
        if len(self.active()) >= self.settings.concurrency:
            return "all places are taken by batches that were claimed without hints"
        try:
            lease = self._claim(run, batch)
        except LedgerError as exc:
            log.warning("hint dropped, the sweep will repeat it: run=%s: %s", run, exc)
            return "the ledger did not answer"
        return "nothing to do" if lease is None else self._work_on(lease)

    def look_at_peers(self) -> None:
        """See who else is well; a worker whose engine is sick leaves its batches to them.

        Called by the worker's clock. Blocks on Redis; LedgerError.
        """
        self.peers = healthy_peers(
            self._ledger, self.queue, self._worker, self.settings.lease_ttl_s
        )
        # What is still being served ends first: a server that limits new requests goes on with it.
        # Kept work that is full gets room by a commit alone: then nothing is handed back.
        if self._withdrawn() and self._stage.idle and not self._stage.store_full:
            for attempt in self.active():
                if not attempt.settled:
                    attempt.stop(SICK)

    def _withdrawn(self) -> bool:
        """Whether this engine fails on everything and another worker is well. Does not block."""
        return bool(self._stage.sick and self.peers)

    def resume_recovered(self) -> None:
        """Go on with batches whose ledger was wiped, once it knows their runs again.

        Called by the worker's clock. Does not block for the work, which gets a thread of its own:
        the hints that would have led to it went with the old ledger.
        """
        for run, batch in self._stage.recoverable():
            if self.draining.is_set() or len(self.active()) >= self.settings.concurrency:
                return
            claim = self._claim_batch(run, batch)
            if claim.why == "done":
                self._stage.drop_held(run, batch)
            if claim.lease is not None:
                work = partial(self._work_on, claim.lease)
                # Where no thread can be started, the lease runs out and it is claimed again.
                OneShotThread("reclaimed", work, label=batch, daemon=False).start()

    def claim_unhinted(self) -> None:
        """Fill the free slots with the oldest pending batches while hints do not come through.

        Called by the worker's clock. Does not block for the work, which gets threads of its own.
        """
        if self._withdrawn():
            return
        for _ in range(self.settings.concurrency - len(self.active())):
            lease = self._claim()
            if lease is None:
                return
            log.info("claimed without a hint: run=%s batch=%s", lease.run, lease.batch)
            work = partial(self._work_on, lease)
            if not OneShotThread("unhinted", work, label=lease.batch, daemon=False).start():
                return

    def _work_on(self, lease: Lease) -> str:
        attempt = Attempt(lease, float(next(self._orders)))
        self._enter(attempt)
        try:
            return self._outcome(attempt)
        finally:
            self._leave(attempt)

    def active(self) -> list[Attempt]:
        """The attempts at work now."""
        with self._changed:
            return list(self._active)

    def refuse_work(self) -> None:
        """Admit nothing more, from now on; a second call also gives up what is in flight.

        Does not block, so that a signal handler may call it.
        """
        if self.draining.is_set():
            self._give_up()
        self.draining.set()
        self._stage.stop_admission(DRAINING)

    def drain(self, grace_s: float) -> None:
        """Admit nothing more, let in-flight generations end within the grace, hand back the rest.

        Blocks for the grace at most; every `process_hint` returns soon after.
        """
        self.draining.set()
        self._stage.stop_admission(DRAINING)
        if not self._stage.wait_idle(grace_s):
            log.warning("grace over: what is in flight is given up, what is finished is kept")
        self._give_up()

    def close_gate(self, reason: str) -> None:
        """Admit nothing more while `reason` stands; what is in flight goes on. Does not block."""
        self._stage.stop_admission(reason)

    def open_gate(self, reason: str) -> None:
        """Take `reason` back. Does not block."""
        self._stage.resume_admission(reason)

    def wait_handed_back(self, timeout_s: float) -> bool:
        """Block until no attempt is at work; False when time ran out first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._active, timeout_s)

    def _give_up(self) -> None:
        for attempt in self.active():
            attempt.stop(DRAIN)

    def _claim(self, run: str = "", batch: str = "") -> Lease | None:
        """The hinted batch, if any, or else the oldest run's oldest: a hint is a wake-up, no more.

        A hint that leads nowhere is a spare one: it stands for a batch whose own hint was lost,
        and that must not wait until all younger work is done.
        """
        for name, wanted in self._candidates(run, batch):
            if self.draining.is_set():
                return None
            claim = self._claim_batch(name, wanted, self._avoided(name))
            if claim.lease is not None:
                return claim.lease
            log.debug("nothing to claim: run=%s: %s", name, claim.why)
        return None

    def _avoided(self, run: str) -> list[str]:
        """Batches of a run that failed here and wait for another engine, while there is one."""
        now = time.monotonic()
        with self._changed:
            self._avoid = {key: until for key, until in self._avoid.items() if until > now}
            avoided = [batch for name, batch in self._avoid if name == run]
        return avoided if avoided and self._another_engine(run) else []

    def _another_engine(self, run: str) -> bool:
        """Whether a well worker could take a batch of this run. Does not block."""
        return any(run not in refused for refused in self.peers.values())

    def _claim_batch(self, run: str, batch: str, avoid: Iterable[str] = ()) -> Claim:
        """This batch and no other, or the run's oldest when it is ''."""
        return self._ledger.claim(
            run,
            batch,
            self._worker,
            self.settings.lease_ttl_s,
            only=bool(batch),
            avoid=avoid,
            boot=self._boot,
            stage=self._stage.spec.name,
        )

    def _candidates(self, run: str, batch: str) -> Iterator[tuple[str, str]]:
        if run and run not in self.refused:
            yield run, batch
        for name, its_queue in self._ledger.runs(self._stage.spec.name).items():
            if its_queue == self.queue and name not in self.refused:
                yield name, ""

    def _enter(self, attempt: Attempt) -> None:
        with self._changed:
            self._active.add(attempt)
        self._stage.enter(attempt)
        self._heartbeat.hold(attempt.lease, attempt.stop)
        if self.draining.is_set():
            attempt.stop(DRAIN)

    def _leave(self, attempt: Attempt) -> None:
        self._heartbeat.drop(attempt.lease)
        self._stage.leave(attempt)
        with self._changed:
            self._active.discard(attempt)
            self._changed.notify_all()

    def _outcome(self, attempt: Attempt) -> str:
        lease = attempt.lease
        try:
            ref = self._stage.run(attempt, lambda: self._another_engine(lease.run))
        except StoppedError as exc:
            if isinstance(exc, HandOverError):
                with self._changed:
                    self._avoid[lease.run, lease.batch] = time.monotonic() + AVOID_S
            return self._hand_back(attempt, exc.why)
        except LeaseLostError as exc:
            return self._on_lease_lost(attempt, exc)
        except (EngineMismatchError, NewerFormatError) as exc:
            return self._refuse_run(attempt, exc)
        except ConflictError as exc:
            return self._kill_batch(attempt, f"conflict: {exc}")
        except Exception as exc:  # noqa: BLE001 - a fault is the batch's story, not the worker's end
            return self._fail(attempt, exc)
        self._count(attempt, "done")
        log.info(
            "batch done: run=%s batch=%s object=%s counts=%s",
            lease.run,
            lease.batch,
            ref.key,
            ref.counts,
        )
        self._on_committed(lease.run, lease.batch)
        return f"{lease.run}/{lease.batch} done"

    def _hand_back(self, attempt: Attempt, why: str) -> str:
        """Flush what is finished, then release: the next attempt starts from it."""
        if why == UNKNOWN:
            self._count(attempt, "held")
            self._hold(attempt)
            return f"{attempt.lease.run}/{attempt.lease.batch} held: the ledger was wiped"
        if why == SICK:
            why = self._stage.sick or "its engine was sick"
        # A worker that goes on has time for it, however long Redis refuses what is finished.
        while not self._stage.flush(attempt, FLUSH_S):
            if self.draining.is_set() or self._stage.store_full:
                log.warning(
                    "handed back before all finished work was kept: run=%s batch=%s",
                    attempt.lease.run,
                    attempt.lease.batch,
                )
                break
        reason = f"worker {self._worker} handed it back ({why})"
        self._try_ledger(attempt, lambda: self._ledger.release(attempt.lease, reason))
        self._count(attempt, "handed_back")
        log.info(
            "batch handed back: run=%s batch=%s why=%s",
            attempt.lease.run,
            attempt.lease.batch,
            why,
        )
        return f"{attempt.lease.run}/{attempt.lease.batch} handed back ({why})"

    def _refuse_run(self, attempt: Attempt, exc: DflashqError) -> str:
        """Leave this run to others while this worker lives: its engine or version is another."""
        log.error("run refused: run=%s: %s", attempt.lease.run, exc)
        self._stage.note_error(f"run {attempt.lease.run} refused: {exc}")
        self.refused[attempt.lease.run] = str(exc)
        self._try_ledger(attempt, lambda: self._ledger.release(attempt.lease, str(exc)))
        self._count(attempt, "refused")
        return f"{attempt.lease.run}/{attempt.lease.batch} refused: {exc}"

    def _on_lease_lost(self, attempt: Attempt, exc: LeaseLostError) -> str:
        """Another worker has the batch; or nobody, since the ledger was wiped."""
        where = f"{attempt.lease.run}/{attempt.lease.batch}"
        self._count(attempt, "lost")
        metrics.LEASE_LOST.add(run=attempt.lease.run)
        log.warning(
            "lease lost: run=%s batch=%s fence=%s: %s",
            attempt.lease.run,
            attempt.lease.batch,
            attempt.lease.fence,
            exc,
        )
        with contextlib.suppress(LedgerError):
            if self._ledger.state(attempt.lease.run, attempt.lease.stage) == UNKNOWN:
                self._hold(attempt)
        return f"{where} lost its lease"

    def _hold(self, attempt: Attempt) -> None:
        held = self._stage.hold(attempt)
        log.error(
            "the ledger does not know the run any more: run=%s batch=%s entries=%d are held in "
            "memory. `dflashq reconcile %s` makes it known again",
            attempt.lease.run,
            attempt.lease.batch,
            held,
            attempt.lease.run,
        )

    def _kill_batch(self, attempt: Attempt, reason: str) -> str:
        self._count(attempt, "dead")
        log.error("batch dead: run=%s batch=%s: %s", attempt.lease.run, attempt.lease.batch, reason)
        self._stage.note_error(f"{attempt.lease.run}/{attempt.lease.batch} dead: {reason}")
        self._try_ledger(attempt, lambda: self._ledger.kill(attempt.lease, reason))
        return f"{attempt.lease.run}/{attempt.lease.batch} is dead: {reason}"

    def _fail(self, attempt: Attempt, exc: Exception) -> str:
        known = isinstance(exc, DflashqError)
        reason = str(exc) if known else f"{type(exc).__name__}: {exc}"
        where = f"{attempt.lease.run}/{attempt.lease.batch}"
        self._count(attempt, "failed")
        self._stage.note_error(f"{where} failed: {reason}")
        log.error(
            "attempt failed: run=%s batch=%s attempt=%d: %s",
            attempt.lease.run,
            attempt.lease.batch,
            attempt.number,
            reason,
            exc_info=None if known else exc,
        )
        self._stage.flush(attempt, FLUSH_S)
        # A full disk, no memory or no descriptors are this machine's: they spend no attempt.
        of_machine = isinstance(exc, (OSError, MemoryError))
        end = self._ledger.release if of_machine else self._ledger.fail
        self._try_ledger(attempt, lambda: end(attempt.lease, reason))
        return f"{where} failed: {reason}"

    @staticmethod
    def _try_ledger(attempt: Attempt, call: Callable[[], object]) -> None:
        try:
            call()
        except LedgerError as exc:
            log.warning(
                "the ledger did not hear of it, the lease will run out: run=%s batch=%s: %s",
                attempt.lease.run,
                attempt.lease.batch,
                exc,
            )

    def _count(self, attempt: Attempt, outcome: str) -> None:
        # The metric is about a run's own batches; stages behind them are counted by the ledger.
        if self._stage.spec.upstream is None:
            metrics.ATTEMPTS.add(run=attempt.lease.run, outcome=outcome)
