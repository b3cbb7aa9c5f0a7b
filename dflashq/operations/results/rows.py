"""The training rows of a run: which batches lack them, made here or hinted to CPU workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dflashq.blobs.s3 import Blobs
from dflashq.core import keys
from dflashq.ledger import Hints
from dflashq.operations.results.samples import CommittedRun, snapshot
from dflashq.stages.rows import tokenize


@dataclass(slots=True)
class RowsResult:
    """What `rows` did: batches with rows before, written now, hinted, not committed yet."""

    run: str
    there: int = 0
    written: int = 0
    rows: int = 0
    hinted: list[str] = field(default_factory=list)
    uncommitted: list[str] = field(default_factory=list)


def make_rows(blobs: Blobs, run: str, progress: Callable[[int, int], None]) -> RowsResult:
    """Write the rows of every committed batch that lacks them. Blocks; safe to repeat and race.

    UnknownRunError for an unknown run, ConflictError when rows are there that are another commit's.
    """
    shot = snapshot(blobs, run)
    made = RowsResult(run, uncommitted=list(shot.missing))
    names = _committed(shot)
    for number, name in enumerate(names, 1):
        done = tokenize(blobs, run, name)
        if done is not None:
            made.written += done.written
            made.there += not done.written
            made.rows += done.rows
        progress(number, len(names))
    return made


def hint_rows(blobs: Blobs, hints: Hints, run: str) -> RowsResult:
    """Hint the batches that lack rows to the workers of the queue `rows`. Safe to repeat."""
    shot = snapshot(blobs, run)
    there = set(blobs.list(keys.rows_prefix(run)))
    names = _committed(shot)
    lacking = [name for name in names if keys.rows_object(run, name) not in there]
    hints.publish(keys.ROWS_QUEUE, run, lacking, task=keys.TOKENIZE_TASK)
    return RowsResult(
        run, there=len(names) - len(lacking), hinted=lacking, uncommitted=list(shot.missing)
    )


def _committed(shot: CommittedRun) -> list[str]:
    return [
        ref.key.rpartition("/")[2].removesuffix(".jsonl.zst")
        for batch in shot.batches
        for ref in batch.refs
    ]
