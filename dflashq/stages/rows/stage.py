"""The rows stage: the training rows of a committed batch, under a lease."""

from __future__ import annotations

from collections.abc import Callable

from dflashq.blobs.s3 import Blobs
from dflashq.core import keys
from dflashq.core.errors import BlobMissingError
from dflashq.core.model import ObjectRef
from dflashq.core.stage_spec import ROWS
from dflashq.ledger import Ledger
from dflashq.stages.attempt import Attempt
from dflashq.stages.base import UnkeptStage
from dflashq.stages.rows.rows_object import RowsObject, write_rows


class RowsStage(UnkeptStage):
    """Rows as the runner sees them. What counts is the object, put if absent.

    So a worker without a ledger, of an older version, may write one too: it is adopted.
    """

    spec = ROWS

    def __init__(self, ledger: Ledger, blobs: Blobs) -> None:
        self._ledger, self._blobs = ledger, blobs

    def run(self, attempt: Attempt, another_worker: Callable[[], bool]) -> ObjectRef:
        """Write the rows of the batch, or adopt those that are there. Blocks.

        StoppedError, LeaseLostError; ConflictError when the rows there are of another commit;
        BlobMissingError when the batch is not committed on S3.
        """
        lease = attempt.lease
        attempt.begun = True
        # Before the work: a batch that kills its worker must not do so uncounted.
        attempt.retry_until_stopped(lambda: self._ledger.begin(lease), "beginning")
        ref = attempt.retry_until_stopped(lambda: self._written(attempt), "writing rows").ref
        attempt.retry_until_stopped(
            lambda: self._ledger.complete(lease, ref, ref.counts), "completing"
        )
        return ref

    def _written(self, attempt: Attempt) -> RowsObject:
        run, batch = attempt.lease.run, attempt.lease.batch
        rows = write_rows(self._blobs, run, batch)
        if rows is None:
            raise BlobMissingError(
                f"{keys.completions_object(run, batch)} is not on S3, so there is nothing to make "
                f"rows of: `dflashq reconcile {run}` has the batch generated again"
            )
        return rows
