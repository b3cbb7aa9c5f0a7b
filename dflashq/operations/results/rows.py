"""The training rows of a run: which batches lack them, made here or hinted to CPU workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dflashq.blobs.s3 import Blobs
from dflashq.core import keys
from dflashq.core.stage_spec import GENERATE, ROWS
from dflashq.ledger import Hints, Ledger
from dflashq.operations.results.samples import CommittedRun, snapshot
from dflashq.stages.request import request_stage
from dflashq.stages.rows.rows_object import write_rows


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

    It needs S3 alone, and whoever called sees what became of it: the ledger is not asked. A worker
    that gets such a batch adopts its rows. UnknownRunError for an unknown run, ConflictError when
    rows are there that are another commit's.
    """
    committed = snapshot(blobs, run)
    result = RowsResult(run, uncommitted=list(committed.missing))
    names = _committed_names(committed)
    for number, name in enumerate(names, 1):
        rows = write_rows(blobs, run, name)
        if rows is not None:
            result.written += rows.written
            result.there += not rows.written
            result.rows += rows.rows
        progress(number, len(names))
    return result


def hint_rows(ledger: Ledger, blobs: Blobs, hints: Hints, run: str) -> RowsResult:
    """Ask workers started with --rows for the rows of a run. Blocks; safe to repeat.

    From now on the sweep adds what is committed later and hints again what was lost. What S3 holds
    counts: a batch whose rows are gone, or that is dead, is done again. UnknownRunError for an
    unknown run.
    """
    committed = snapshot(blobs, run)
    objects = set(blobs.list(keys.rows_prefix(run)))
    names = _committed_names(committed)
    lacking = [name for name in names if keys.rows_object(run, name) not in objects]
    request_stage(ledger, blobs, run, ROWS)
    done = ledger.done(run, ROWS.name)
    for name in done.keys() & set(lacking):
        ledger.forget(run, name, done[name], done[name].counts, ROWS.name)
    if names:
        ledger.revive(run, "its rows were asked for again", names, ROWS.name)
    ledger.add(run, names, ROWS.name)
    hints.publish(ROWS.queue, run, lacking, spec=ROWS)
    return RowsResult(
        run,
        there=len(names) - len(lacking),
        hinted=lacking,
        uncommitted=list(committed.missing),
    )


def _committed_names(committed: CommittedRun) -> list[str]:
    return [
        ref.key.rpartition("/")[2].removesuffix(GENERATE.suffix)
        for batch in committed.batches
        for ref in batch.refs
    ]
