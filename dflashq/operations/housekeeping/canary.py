"""The canary of a run is judged from its committed object; the run goes on or is paused."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from dflashq.blobs import runs
from dflashq.blobs.commits import accepted_rows, rejected_rows
from dflashq.blobs.s3 import Blobs
from dflashq.core.errors import BlobMissingError, ConflictError, DflashqError, UnknownRunError
from dflashq.core.model import ObjectRef
from dflashq.core.quality_guard import (
    JudgedPrompt,
    canary_objection,
    dead_canary,
    lost_canary,
    unreadable_canary,
)
from dflashq.core.states import BatchState, RunState
from dflashq.ledger import Hints, Ledger
from dflashq.ledger.models import RunStatus
from dflashq.operations.housekeeping.containment import contained
from dflashq.operations.monitoring.run_condition import is_canary_lost
from dflashq.operations.runs.hinting import hint_pending
from dflashq.stages.run_state import mirror_run_state

log = logging.getLogger(__name__)

WHAT_TO_DO = (
    "read them with `dflashq show {run} INDEX`; go on with `dflashq resume {run} --accept`, after "
    "which `dflashq backfill {run} --rejected` runs them again, or `dflashq cancel {run}`"
)
# What a missing or damaged object raises: each time, and in every worker.
_LASTING = (BlobMissingError, ConflictError, UnknownRunError)
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)


def judge_canaries(ledger: Ledger, blobs: Blobs, hints: Hints) -> None:
    """Let the other batches of a run go where its canary is good, or pause the run.

    A run is paused where its canary is bad, dead, lost, or done and cannot be judged from what S3
    holds, since its other batches would wait for ever. Blocks on Redis and S3; safe to repeat and
    to run in many workers, as the verdict follows from the ledger and the object alone.
    LedgerUnreachableError; any other failure concerns one run and is logged, and the next call
    tries that run again.
    """
    for run in ledger.runs():
        with contained(run, "judging the canary"):
            _judge_or_pause(ledger, blobs, hints, run)


def _judge_or_pause(ledger: Ledger, blobs: Blobs, hints: Hints, run: str) -> None:
    if not ledger.waits_for(run) or ledger.state(run) != RunState.ACTIVE:
        return
    status = ledger.status(run)
    canary = status.waits_for
    if status.canary == BatchState.DONE:
        _judge(ledger, blobs, hints, status)
    elif status.canary == BatchState.DEAD and not status.finished:
        _pause(ledger, blobs, status, dead_canary(run, canary, status.dead[canary]))
    elif is_canary_lost(status):
        _pause(ledger, blobs, status, lost_canary(run, canary))


def _judge(ledger: Ledger, blobs: Blobs, hints: Hints, status: RunStatus) -> None:
    run, ref = status.name, ledger.done(status.name).get(status.waits_for)
    if ref is None:
        return  # its object is gone, and a reconcile has taken the batch back meanwhile
    objection = _objection(ledger, blobs, status, ref)
    if objection:
        _pause(ledger, blobs, status, objection)
        return
    log.info("canary passed: run=%s object=%s", run, ref.key)
    ledger.release_canary(run)
    hint_pending(ledger, hints, status.queue)


def _objection(ledger: Ledger, blobs: Blobs, status: RunStatus, ref: ObjectRef) -> str:
    """Why the canary must not pass, with what to do; empty when it passes."""
    run = status.name
    try:
        guard = runs.read_run(blobs, run).spec.guard
        judged = list(_judged(blobs, ref))
        if not judged:
            raise ConflictError(f"{ref.key} and its rejected object hold no prompt at all")
        objection = canary_objection(judged, guard, ledger.tolerated(run))
    except _LASTING as exc:
        return unreadable_canary(run, status.waits_for, str(exc).rstrip("."))
    except _DAMAGE as exc:
        log.exception("the canary cannot be judged: run=%s object=%s", run, ref.key)
        why = f"what S3 holds of it is not what it should be ({type(exc).__name__}: {exc})"
        return unreadable_canary(run, status.waits_for, why)
    return f"{objection}. What to do: {WHAT_TO_DO.format(run=run)}" if objection else ""


def _judged(blobs: Blobs, ref: ObjectRef) -> Iterator[JudgedPrompt]:
    for row in accepted_rows(blobs, ref):
        yield JudgedPrompt(f"index {row['index']}", None, row["usage"]["completion_tokens"])
    for row in rejected_rows(blobs, ref):
        yield JudgedPrompt(
            f"index {row['index']}", row["reason"], row["usage"]["completion_tokens"]
        )


def _pause(ledger: Ledger, blobs: Blobs, status: RunStatus, sentence: str) -> None:
    """Pause the run unless a person has acted on it since its status was read."""
    run = status.name
    if not ledger.pause_at_canary(run, status.canary, sentence):
        return
    log.error("run paused: run=%s: %s", run, sentence)
    try:
        mirror_run_state(ledger, blobs, run, RunState.PAUSED, sentence)
    except DflashqError as exc:
        # The ledger has the pause; a ledger that is rebuilt from S3 judges the canary again.
        log.warning("the pause is not mirrored on S3: run=%s: %s", run, exc)
