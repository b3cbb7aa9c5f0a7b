"""Pause, resume and cancel a run: in the ledger at once, mirrored on S3."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dflashq.blobs import runs
from dflashq.blobs.s3 import Blobs
from dflashq.core.errors import DflashqError, LedgerUnreachableError
from dflashq.ledger import Hints, Ledger
from dflashq.ledger.models import RunStatus
from dflashq.operations.runs.hinting import hint_pending

log = logging.getLogger(__name__)

ACTIVE, PAUSED, CANCELLED = "active", "paused", "cancelled"


@dataclass(frozen=True, slots=True)
class ResumeResult:
    """What a resume did: the state that now holds, and what goes on, in a clause."""

    state: str
    clause: str


def pause(ledger: Ledger, blobs: Blobs, run: str, reason: str) -> str:
    """Workers hand the run's batches back within seconds; what is finished stays kept."""
    return _change(ledger, blobs, run, PAUSED, reason)


def resume(
    ledger: Ledger, blobs: Blobs, hints: Hints, run: str, *, accept: bool = False
) -> ResumeResult:
    """Go on where the run was; its pending batches are hinted again.

    A canary that is dead gets its attempts back, one that the ledger has lost is added again.
    `accept` takes things as they are, on record in the run's state on S3: a dead canary is left
    dead and nobody waits for it; otherwise it counts as passed, and any share of rejections is
    tolerated from now on. Blocks; safe to repeat. DflashqError for a cancelled or unknown run.
    """
    status = ledger.status(run)
    if status.state == CANCELLED:
        raise DflashqError(_for_good(run, CANCELLED))
    clause = _accept(ledger, status) if accept else _try_again(ledger, status)
    reason = f"resumed; {clause}" if accept else ""
    state = _change(ledger, blobs, run, ACTIVE, reason)
    try:
        hint_pending(ledger, hints, status.queue)
    except LedgerUnreachableError as exc:
        log.info("the run is active, a worker's sweep hints its batches: run=%s: %s", run, exc)
    return ResumeResult(state, clause)


def _try_again(ledger: Ledger, status: RunStatus) -> str:
    """See that the canary can run; before the run is active, or a worker's look pauses it again."""
    run, canary = status.name, status.waits_for
    if status.canary == "dead":
        ledger.revive(run, "revived by resume", [canary])
        return f"its canary ({canary}) is tried again, and the others wait until it has passed"
    if status.canary == "lost":
        ledger.add(run, [canary])
        return f"its canary ({canary}) is added again, and the others wait until it has passed"
    if status.canary == "done":
        return (
            f"its canary ({canary}) is judged again, from the results that it has: if they were "
            f"the reason of the pause, the run pauses again. `dflashq resume {run} --accept` takes "
            f"them as they are, and then `dflashq backfill {run} --rejected` runs them again"
        )
    if status.finished:
        return "nothing of it is left to do"
    return "it goes on where it was"


def _accept(ledger: Ledger, status: RunStatus) -> str:
    """Let the others go; what was never judged makes no rejection tolerable."""
    run, canary = status.name, status.waits_for
    if status.canary == "dead":
        ledger.release_canary(run)
        return (
            f"it goes on without its canary ({canary}), which stays dead until "
            f"`dflashq backfill {run}` revives it"
        )
    if status.canary == "lost":
        ledger.add(run, [canary])
        ledger.release_canary(run)
        return f"its canary ({canary}) is added again, as a batch that nobody waits for"
    if status.canary in ("pending", "leased"):
        ledger.release_canary(run)
        return f"it goes on without waiting for its canary ({canary})"
    ledger.release_canary(run, tolerated=1.0)
    return "a person accepted its rejections as they are"


def cancel(ledger: Ledger, blobs: Blobs, run: str, reason: str) -> str:
    """End the run for good; committed batches stay, kept work is dropped."""
    return _change(ledger, blobs, run, CANCELLED, reason)


def _change(ledger: Ledger, blobs: Blobs, run: str, state: str, reason: str) -> str:
    now = ledger.set_state(run, state, reason)
    if now != state:
        raise DflashqError(_for_good(run, now))
    runs.write_state(blobs, run, state, reason)
    return now


def _for_good(run: str, state: str) -> str:
    return (
        f"run {run!r} is {state} and stays so: what it committed is on S3. Enqueue the prompts "
        "under another name to go on."
    )
