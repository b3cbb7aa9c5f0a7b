"""The shards of an export, written in order; those that are at the target already are skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dflashq.core import codec
from dflashq.core.training_data.rows import Row
from dflashq.operations.export.formats import Format, Shard
from dflashq.operations.export.manifest import Manifest, ShardRecord
from dflashq.operations.export.targets import Target

STEM = "train"


class ShardWriter:
    """Writes the rows of one folder of an export (a domain, or all rows) to numbered shards.

    Rows must come in the same order at every run of the export. A shard that the manifest records
    and the target has is not written again: its rows are only counted. `add` and `close` block on
    the target.
    """

    def __init__(
        self,
        target: Target,
        manifest: Manifest,
        folder: str,
        form: Format,
        open_shard: Callable[[], Shard],
        shard_rows: int,
    ) -> None:
        self._target, self._manifest = target, manifest
        self._folder, self._form = folder, form
        self._open_shard, self._shard_rows = open_shard, shard_rows
        # The record of the open shard, and its bytes unless it is at the target already.
        self._record: ShardRecord | None = None
        self._shard: Shard | None = None
        self._lines = 0
        self.records: list[ShardRecord] = []

    def add(self, line: dict[str, Any], rows: int, row: Row | None = None) -> None:
        """Add one line, which holds `rows` training rows; a full shard is closed.

        `row` is the training row of a line that does not have `input_ids` and `loss_mask` itself.
        """
        record = self._record or self._begin()
        if self._shard is not None:
            self._shard.add(line)
        record.tokens += len(line["input_ids"] if row is None else row.input_ids)
        record.supervised += sum(line["loss_mask"]) if row is None else row.supervised
        record.rows += rows
        self._lines += 1
        if self._lines == self._shard_rows:
            self.close()

    def _begin(self) -> ShardRecord:
        name = f"{self._folder}{STEM}-{len(self.records):05d}.{self._form.ending}"
        exists = name in self._manifest.shards and self._manifest.check(self._target, name)
        self._shard = None if exists else self._open_shard()
        self._record = ShardRecord(name, rows=0, tokens=0, supervised=0, bytes=0, sha256="")
        self._lines = 0
        return self._record

    def close(self) -> None:
        """Write the open shard, if any, and record it. Safe to repeat. DflashqError."""
        record, shard = self._record, self._shard
        if record is None:
            return
        if shard is None:
            record = self._manifest.shards[record.name]
        else:
            body = shard.close()
            record.bytes, record.sha256 = len(body), codec.sha256(body)
            self._target.put_new(record.name, body)
            self._manifest.shards[record.name] = record
            self._manifest.save(self._target)
        self.records.append(record)
        self._record = self._shard = None
