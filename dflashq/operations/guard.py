"""The canary: judged from its committed object, whoever wrote it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from dflashq.blobs import runs
from dflashq.blobs.commits import rejected_rows
from dflashq.blobs.s3 import Blobs
from dflashq.core import codec
from dflashq.core.guard import Judged, canary_objection
from dflashq.core.model import ObjectRef
from dflashq.ledger import Hints, Ledger
from dflashq.operations.control import PAUSED
from dflashq.operations.sweep import hint_pending

log = logging.getLogger(__name__)

WHAT_TO_DO = (
    "read them in the rejected object on S3 (dflashq verify {run} names it); go on as it is with "
    "`dflashq resume {run} --accept`, or `dflashq cancel {run}`"
)


def judge_canaries(ledger: Ledger, blobs: Blobs, hints: Hints) -> None:
    """Let the other batches go where the canary is good, pause the run where it is not.

    Blocks; safe to repeat and to run in many workers: the verdict follows from the object.
    """
    for run in ledger.runs():
        canary = ledger.waits_for(run)
        if not canary or ledger.state(run) != "active":
            continue
        ref = ledger.done(run).get(canary)
        if ref is not None:
            _judge(ledger, blobs, hints, run, ref)


def _judge(ledger: Ledger, blobs: Blobs, hints: Hints, run: str, ref: ObjectRef) -> None:
    record = runs.read_run(blobs, run)
    objection = canary_objection(
        list(_judged(blobs, ref)), record.spec.guard, ledger.tolerated(run)
    )
    if objection:
        sentence = f"{objection}. What to do: {WHAT_TO_DO.format(run=run)}"
        log.error("run paused: run=%s: %s", run, sentence)
        ledger.set_state(run, PAUSED, sentence)
        runs.write_state(blobs, run, PAUSED, sentence)
        return
    log.info("canary passed: run=%s object=%s", run, ref.key)
    ledger.release_canary(run)
    hint_pending(ledger, hints, record.spec.queue)


def _judged(blobs: Blobs, ref: ObjectRef) -> Iterator[Judged]:
    for row in codec.decode_rows(blobs.get(ref.key).body):
        yield Judged(f"index {row['index']}", None, row["usage"]["completion_tokens"])
    for row in rejected_rows(blobs, ref):
        yield Judged(f"index {row['index']}", row["reason"], row["usage"]["completion_tokens"])
