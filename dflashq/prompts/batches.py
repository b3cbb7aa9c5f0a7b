"""All prompt files are read to their end into batches on disk, before anything is uploaded."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from dflashq.core.codec import compress, encode_line, sha256
from dflashq.core.errors import InputError
from dflashq.core.keys import batch_name
from dflashq.prompts.canary_draw import CanaryDraw
from dflashq.prompts.duplicate_ids import DuplicateIdIndex
from dflashq.prompts.normalize import ACCEPT, BLANK_LINE, REJECT, SKIP
from dflashq.prompts.reader import PromptRow, read_prompts

PROGRESS_EVERY = 1000


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """One batch on disk: the file of its prompts object (zstd), the sha256 of that in hex.

    `first` and `last` are its range of indexes, inclusive.
    """

    name: str
    path: Path
    sha256: str
    prompts: int
    first: int
    last: int


@dataclass(slots=True)
class PreparedBatches:
    """The batches of all files, and what became of each row.

    The files exist as long as the context of `spooled`, the one at `rejected_path` for good.
    `counts` counts rows by what was done (accept, normalise, reject). `reasons` counts them by that
    and by reason word; a normalised row may count under several. A blank line is not a row: it
    counts in `reasons` alone, under skip. `domains` counts prompts by domain ("" without one).
    `records_path` has a JSON line {file, line, do, why, detail?} for each row that was not accepted
    as it is, and for each blank line. `rejected_path` is None when no row was rejected.
    """

    batches: list[PreparedBatch] = field(default_factory=list)
    prompts: int = 0
    prompts_sha256: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, Counter[str]] = field(default_factory=dict)
    domains: Counter[str] = field(default_factory=Counter)
    records_path: Path = Path()
    rejected_path: Path | None = None


@contextmanager
def spooled(
    files: Sequence[Path],
    *,
    rejected_path: Path,
    batch_size: int = 1000,
    canary: int = 0,
    limit: int | None = None,
    folder: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[PreparedBatches]:
    """Read `files` in order into a temporary folder under `folder`; the context removes it.

    A first batch of `canary` prompts is drawn over all domains. Reading stops after `limit`
    prompts; `progress(rows)` is called every `PROGRESS_EVERY` rows. Rejected rows go to
    `rejected_path` ({file, line, why, detail, and raw or raw_base64}), also when this raises.
    InputError when a file cannot be read or has no usable row, or the disk cannot be written.
    Memory is constant. Blocks on the disk; safe to repeat.
    """
    with tempfile.TemporaryDirectory(prefix="dflashq-spool-", dir=folder) as name:
        writer = _Writer(Path(name), batch_size, min(canary, batch_size))
        try:
            with writer:
                _read_all(files, writer, limit, progress)
            writer.hand_over_rejected(rejected_path)
        except InputError as exc:
            writer.hand_over_rejected(rejected_path)
            raise InputError(
                f"{exc}{_rejected_rows_sentence(writer.prepared.rejected_path)}"
            ) from exc
        except OSError as exc:
            raise InputError(
                f"{name} or {rejected_path} cannot be written: {exc.strerror or exc}. Nothing was "
                "enqueued; make room on that disk and enqueue again."
            ) from exc
        yield writer.prepared


def _rejected_rows_sentence(rejected_path: Path | None) -> str:
    return "" if rejected_path is None else f" The rejected rows are in {rejected_path}."


def _read_all(
    files: Sequence[Path],
    writer: _Writer,
    limit: int | None,
    progress: Callable[[int], None] | None,
) -> None:
    index, rows = DuplicateIdIndex(), 0
    for path in files:
        file = os.fsencode(path).decode("utf-8", "replace")
        for row in read_prompts(path, index, partial(writer.skip, file)):
            writer.add(file, row)
            rows += 1
            if progress is not None and not rows % PROGRESS_EVERY:
                progress(rows)
            if limit is not None and writer.prepared.prompts >= limit:
                return
    if not writer.prepared.prompts:
        raise InputError("no prompt file was given, so there are no rows. Nothing was enqueued.")


class _Writer:
    """Writes rows into batches; records and rejected rows go to files of their own."""

    def __init__(self, folder: Path, batch_size: int, canary: int) -> None:
        self._folder = folder
        self._batch_size, self._next_index = batch_size, canary
        self._draw = CanaryDraw(canary)
        self._lines: list[bytes] = []
        self._hash = hashlib.sha256()
        self._rejected_temp = folder / "rejected.jsonl"
        self.prepared = PreparedBatches(records_path=folder / "records.jsonl")

    def __enter__(self) -> _Writer:
        self._records: IO[bytes] = self.prepared.records_path.open("wb")
        self._rejected: IO[bytes] = self._rejected_temp.open("wb")
        return self

    def __exit__(self, *exc: object) -> None:
        self._records.close()
        self._rejected.close()
        if exc[0] is None:
            self._finish()

    def _finish(self) -> None:
        """Write the rows that were held back: the canary as first batch, the others at the end."""
        drawn, rest = self._draw.drawn()
        for row in rest:
            self._append(row)
        if self._lines:
            self._close_batch()
        lines = [encode_line({"index": index, **row}) for index, row in enumerate(drawn)]
        if lines:
            text = b"".join(lines)
            self.prepared.batches.insert(0, self._written(0, text, len(lines), len(lines) - 1))
            self._hash = hashlib.sha256(hashlib.sha256(text).digest() + self._hash.digest())
        self.prepared.prompts_sha256 = self._hash.hexdigest()

    def add(self, file: str, row: PromptRow) -> None:
        """Add one row to the current batch, the records and the counts."""
        outcome, prepared = row.outcome, self.prepared
        prepared.counts[outcome.do] += 1
        if outcome.do != ACCEPT:
            self._record(file, row)
        if outcome.row is None:
            return
        prepared.prompts += 1
        prepared.domains[outcome.row.get("domain", "")] += 1
        if not self._draw.hold(outcome.row):
            self._append(outcome.row)

    def _append(self, row: dict[str, Any]) -> None:
        self._lines.append(encode_line({"index": self._next_index, **row}))
        self._next_index += 1
        if len(self._lines) >= self._batch_size:
            self._close_batch()

    def skip(self, file: str, line: int) -> None:
        """Record a blank line, which is not counted as a row."""
        self.prepared.reasons.setdefault(SKIP, Counter()).update([BLANK_LINE])
        record = {"file": file, "line": line, "do": SKIP, "why": [BLANK_LINE]}
        self._records.write(encode_line(record))

    def _record(self, file: str, row: PromptRow) -> None:
        do, why, detail, _ = row.outcome
        self.prepared.reasons.setdefault(do, Counter()).update(why)
        record: dict[str, Any] = {"file": file, "line": row.line, "do": do, "why": list(why)}
        if detail:
            record["detail"] = detail
        self._records.write(encode_line(record))
        if do == REJECT:
            line = {"file": file, "line": row.line, "why": why[0], "detail": detail}
            self._rejected.write(encode_line(line | _raw(row.raw)))

    def _close_batch(self) -> None:
        text = b"".join(self._lines)
        self._hash.update(text)
        number = len(self.prepared.batches) + self._draw.takes_a_batch
        last = self._next_index - 1
        self.prepared.batches.append(self._written(number, text, len(self._lines), last))
        self._lines = []

    def _written(self, number: int, text: bytes, prompts: int, last: int) -> PreparedBatch:
        """Write one batch to disk."""
        body, name = compress(text), batch_name(number)
        path = self._folder / f"{name}.jsonl.zst"
        path.write_bytes(body)
        return PreparedBatch(name, path, sha256(body), prompts, last - prompts + 1, last)

    def hand_over_rejected(self, path: Path) -> None:
        """Move the rejected rows, if there are any, to the path that the user gave."""
        if self.prepared.counts[REJECT]:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(self._rejected_temp, path)
            self.prepared.rejected_path = path


def _raw(raw: bytes) -> dict[str, str]:
    """The bytes of a rejected row: as text, or in base64 when they are no UTF-8."""
    try:
        return {"raw": raw.decode()}
    except UnicodeDecodeError:
        return {"raw_base64": base64.b64encode(raw).decode()}
