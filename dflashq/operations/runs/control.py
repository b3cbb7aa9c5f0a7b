"""Pause, resume and cancel a run: in the ledger at once, mirrored on S3."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dflashq.blobs.s3 import Blobs
from dflashq.core.errors import DflashqError, LedgerUnreachableError
from dflashq.core.states import BatchState, RunState
from dflashq.ledger import Hints, Ledger
from dflashq.ledger.models import RunStatus
from dflashq.operations.runs.hinting import hint_pending
from dflashq.stages.run_state import set_run_state

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResumeResult:
    """What a resume did: the state that now holds, and `clause`, which says what goes on."""

    state: RunState
    clause: str


def pause(ledger: Ledger, blobs: Blobs, run: str, reason: str) -> RunState:
    """Pause a run: its workers hand their batches back within seconds, finished work stays kept.

    Blocks on Redis and S3; safe to repeat. DflashqError for a cancelled or unknown run.
    """
    return _change(ledger, blobs, run, RunState.PAUSED, reason)


def resume(
    ledger: Ledger, blobs: Blobs, hints: Hints, run: str, *, accept: bool = False
) -> ResumeResult:
    """Go on where the run was; its pending batches are hinted again.

    A dead canary gets its attempts back; one that the ledger has lost is added again. With
    `accept`, the others do not wait for the canary any more: a dead one stays dead, a done one
    counts as passed, and then any share of rejections is tolerated from now on. The run's state on
    S3 records the acceptance. Blocks on Redis and S3; safe to repeat. DflashqError for a cancelled
    or unknown run.
    """
    status = ledger.status(run)
    if status.state == RunState.CANCELLED:
        raise DflashqError(_for_good(run, RunState.CANCELLED))
    clause = _accept(ledger, status) if accept else _try_again(ledger, status)
    reason = f"resumed; {clause}" if accept else ""
    state = _change(ledger, blobs, run, RunState.ACTIVE, reason)
    try:
        hint_pending(ledger, hints, status.queue)
    except LedgerUnreachableError as exc:
        log.info("the run is active, a worker's sweep hints its batches: run=%s: %s", run, exc)
    return ResumeResult(state, clause)


def _try_again(ledger: Ledger, status: RunStatus) -> str:
    """See that the canary can run; returns what goes on.

    This comes before the run is active: a worker would meet the dead canary and pause it again.
    """
    run, canary = status.name, status.waits_for
    if status.canary == BatchState.DEAD:
        ledger.revive(run, "revived by resume", [canary])
        return f"its canary ({canary}) is tried again, and the others wait until it has passed"
    if status.canary == "lost":
        ledger.add(run, [canary])
        return f"its canary ({canary}) is added again, and the others wait until it has passed"
    if status.canary == BatchState.DONE:
        return (
            f"its canary ({canary}) is judged again, from the results that it has: if they were "
            f"the reason of the pause, the run pauses again. `dflashq resume {run} --accept` takes "
            f"them as they are, and then `dflashq backfill {run} --rejected` runs them again"
        )
    if status.finished:
        return "nothing of it is left to do"
    return "it goes on where it was"


def _accept(ledger: Ledger, status: RunStatus) -> str:
    """Let the others go; returns what goes on.

    Rejections are tolerated only where the canary is done, since only then has a person seen any.
    """
    run, canary = status.name, status.waits_for
    if status.canary == BatchState.DEAD:
        ledger.release_canary(run)
        return (
            f"it goes on without its canary ({canary}), which stays dead until "
            f"`dflashq backfill {run}` revives it"
        )
    if status.canary == "lost":
        ledger.add(run, [canary])
        ledger.release_canary(run)
        return f"its canary ({canary}) is added again, as a batch that nobody waits for"
    if status.canary in (BatchState.PENDING, BatchState.LEASED):
        ledger.release_canary(run)
        return f"it goes on without waiting for its canary ({canary})"
    ledger.release_canary(run, tolerated=1.0)
    return "a person accepted its rejections as they are"


def cancel(ledger: Ledger, blobs: Blobs, run: str, reason: str) -> RunState:
    """End a run for good: committed batches stay, kept work is dropped.

    Blocks on Redis and S3; safe to repeat. DflashqError for an unknown run.
    """
    return _change(ledger, blobs, run, RunState.CANCELLED, reason)


def _change(ledger: Ledger, blobs: Blobs, run: str, state: RunState, reason: str) -> RunState:
    current = set_run_state(ledger, blobs, run, state, reason)
    if current != state:
        raise DflashqError(_for_good(run, current))
    return current


def _for_good(run: str, state: RunState) -> str:
    return (
        f"run {run!r} is {state} and stays so: what it committed is on S3. Enqueue the prompts "
        "under another name to go on."
    )
