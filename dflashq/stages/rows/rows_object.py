"""The rows object: the training rows of a committed batch, as Parquet beside it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dflashq.blobs import commits, runs
from dflashq.blobs.s3 import Blobs
from dflashq.core import codec, keys
from dflashq.core.errors import ConflictError
from dflashq.core.model import ObjectRef
from dflashq.core.training_data import parquet
from dflashq.core.training_data.rows import rows_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RowsObject:
    """The rows of one batch: the reference of their object, and whether this call wrote it."""

    ref: ObjectRef
    written: bool

    @property
    def rows(self) -> int:
        """How many rows the object holds."""
        return self.ref.counts["rows"]


def write_rows(blobs: Blobs, run: str, batch: str) -> RowsObject | None:
    """Put the rows of a committed batch if absent; None when the batch is not committed yet.

    Rows are whole: length is a matter of the export. Blocks on S3; safe to repeat and to race.
    ConflictError when the rows there are of another commit.
    """
    record = runs.read_run(blobs, run)
    ref = commits.read_reference(blobs, run, batch, record.fingerprint)
    if ref is None:
        log.info("no rows yet: run=%s batch=%s is not committed", run, batch)
        return None
    key = keys.rows_object(run, batch)
    if (metadata := blobs.head(key)) is not None:
        return _existing(key, metadata, ref)
    rows = _Rows(blobs, ref)
    body = parquet.parquet(rows, parquet.ROW_COLUMNS)
    metadata = {
        "sha256": codec.sha256(body),
        "completions-sha256": ref.sha256,
        "rows": str(rows.number),
    }
    if not blobs.put_absent(key, body, metadata):
        return _existing(key, blobs.head(key) or {}, ref)
    log.info("rows written: run=%s batch=%s rows=%d", run, batch, rows.number)
    return RowsObject(_reference(key, metadata, ref), written=True)


class _Rows:
    """The rows of a commit, read as they are asked for, and counted."""

    def __init__(self, blobs: Blobs, ref: ObjectRef) -> None:
        self._blobs, self._ref, self.number = blobs, ref, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for sample in commits.accepted_rows(self._blobs, self._ref):
            for row in rows_of(sample):
                self.number += 1
                yield row.to_json()


def _existing(key: str, metadata: dict[str, str], ref: ObjectRef) -> RowsObject:
    """The rows that are there already; ConflictError when they are of another commit."""
    if metadata.get("completions-sha256") != ref.sha256:
        raise ConflictError(
            f"{key} was made from another completions object than {ref.key}, which has sha256 "
            f"{ref.sha256[:12]}…. Nothing was overwritten: delete the rows object to make it anew."
        )
    return RowsObject(_reference(key, metadata, ref), written=False)


def _reference(key: str, metadata: dict[str, str], ref: ObjectRef) -> ObjectRef:
    """The reference of rows made from the commit `ref`."""
    counts = {"rows": int(metadata["rows"])}
    return ObjectRef(key, metadata["sha256"], ref.fingerprint, counts)
