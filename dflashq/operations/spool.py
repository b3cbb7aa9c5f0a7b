"""The spool: all prompt files read to their end into batches on disk, before anything is sent."""

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
from dflashq.core.prompts import ACCEPT, BLANK_LINE, REJECT, SKIP
from dflashq.core.seen import SeenIds
from dflashq.operations.reading import Row, read_prompts

TELL_EVERY = 1000


@dataclass(frozen=True, slots=True)
class SpooledBatch:
    """One batch on disk: a whole zstd object, its sha256 (hex), its inclusive index range."""

    name: str
    path: Path
    sha256: str
    prompts: int
    first: int
    last: int


@dataclass(slots=True)
class Spool:
    """What was read. Paths live as long as the context of `spooled`, `rejected_path` longer.

    `counts` is rows by do (accept, normalise, reject); `reasons` rows by do, then reason word (a
    normalised row may count under several; a blank line is no row and is in `reasons` alone, under
    skip); `domains` prompts by domain ("" without one).
    `records_path` holds one JSON line for each row that was not plainly accepted: {file, line, do,
    why, detail?}, blank lines too. `rejected_path` is None when no row was rejected.
    """

    batches: list[SpooledBatch] = field(default_factory=list)
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
    first_batch: int | None = None,
    limit: int | None = None,
    folder: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Spool]:
    """Reads `files` in order into a temporary folder (under `folder`) that goes with the context.

    `first_batch` makes the first batch smaller; reading stops behind `limit` prompts;
    `progress(rows)` is called every `TELL_EVERY` rows. Constant memory; blocks on the disk.
    Rejected rows go to `rejected_path` ({file, line, why, detail, and raw or raw_base64}), also
    when this raises. Raises InputError when a file cannot be read or has no usable row; nothing
    is left in the temporary folder. Safe to repeat.
    """
    with tempfile.TemporaryDirectory(prefix="dflashq-spool-", dir=folder) as name:
        writer = _Writer(Path(name), batch_size, first_batch or batch_size)
        try:
            with writer:
                _read_all(files, writer, limit, progress)
            writer.hand_over_rejected(rejected_path)
        except InputError as exc:
            writer.hand_over_rejected(rejected_path)
            raise InputError(f"{exc}{_where(writer.spool.rejected_path)}") from exc
        except OSError as exc:
            raise InputError(
                f"the spool in {name} or {rejected_path} cannot be written: "
                f"{exc.strerror or exc}. Nothing was enqueued; make room and do it again."
            ) from exc
        yield writer.spool


def _where(rejected_path: Path | None) -> str:
    return "" if rejected_path is None else f" The rejected rows are in {rejected_path}."


def _read_all(
    files: Sequence[Path],
    writer: _Writer,
    limit: int | None,
    progress: Callable[[int], None] | None,
) -> None:
    seen, rows = SeenIds(), 0
    for path in files:
        file = os.fsencode(path).decode("utf-8", "replace")
        for row in read_prompts(path, seen, partial(writer.skip, file)):
            writer.add(file, row)
            rows += 1
            if progress is not None and not rows % TELL_EVERY:
                progress(rows)
            if limit is not None and writer.spool.prompts >= limit:
                return
    if not writer.spool.prompts:
        raise InputError("no prompt file was given, so there are no rows. Nothing was enqueued.")


class _Writer:
    """Writes rows into batches, and what was not plainly accepted beside them."""

    def __init__(self, folder: Path, batch_size: int, first_batch: int) -> None:
        self._folder = folder
        self._batch_size, self._room = batch_size, first_batch
        self._lines: list[bytes] = []
        self._hash = hashlib.sha256()
        self._rejected_temp = folder / "rejected.jsonl"
        self.spool = Spool(records_path=folder / "records.jsonl")

    def __enter__(self) -> _Writer:
        self._records: IO[bytes] = self.spool.records_path.open("wb")
        self._rejected: IO[bytes] = self._rejected_temp.open("wb")
        return self

    def __exit__(self, *exc: object) -> None:
        self._records.close()
        self._rejected.close()
        if self._lines and exc[0] is None:
            self._close_batch()
        self.spool.prompts_sha256 = self._hash.hexdigest()

    def add(self, file: str, row: Row) -> None:
        """Takes one row into the current batch, the records and the counts."""
        outcome, spool = row.outcome, self.spool
        spool.counts[outcome.do] += 1
        if outcome.do != ACCEPT:
            self._record(file, row)
        if outcome.row is None:
            return
        prompt = {"index": spool.prompts, **outcome.row}
        spool.prompts += 1
        spool.domains[prompt.get("domain", "")] += 1
        self._lines.append(encode_line(prompt))
        if len(self._lines) >= self._room:
            self._close_batch()

    def skip(self, file: str, line: int) -> None:
        """A blank line goes on record; it is no row and counts for nothing."""
        self.spool.reasons.setdefault(SKIP, Counter()).update([BLANK_LINE])
        record = {"file": file, "line": line, "do": SKIP, "why": [BLANK_LINE]}
        self._records.write(encode_line(record))

    def _record(self, file: str, row: Row) -> None:
        do, why, detail, _ = row.outcome
        self.spool.reasons.setdefault(do, Counter()).update(why)
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
        body = compress(text)
        batches, prompts = self.spool.batches, len(self._lines)
        name = batch_name(len(batches))
        path = self._folder / f"{name}.jsonl.zst"
        path.write_bytes(body)
        last = self.spool.prompts - 1
        batches.append(SpooledBatch(name, path, sha256(body), prompts, last - prompts + 1, last))
        self._lines, self._room = [], self._batch_size

    def hand_over_rejected(self, path: Path) -> None:
        """Moves the rejected rows to where the user finds them; leaves no empty file."""
        if self.spool.counts[REJECT]:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(self._rejected_temp, path)
            self.spool.rejected_path = path


def _raw(raw: bytes) -> dict[str, str]:
    """A rejected row as it stood: as text, or in base64 when it is no UTF-8."""
    try:
        return {"raw": raw.decode()}
    except UnicodeDecodeError:
        return {"raw_base64": base64.b64encode(raw).decode()}
