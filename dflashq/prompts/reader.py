"""The rows of a prompt file, each with what became of it, as a stream."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dflashq.core.errors import InputError
from dflashq.prompts.duplicate_ids import DuplicateIdIndex, prompt_key
from dflashq.prompts.files import utf8_chunks
from dflashq.prompts.jsonl import MalformedRecord, ignore_blank_line
from dflashq.prompts.normalize import REJECT, Outcome, normalise, noted, rejected
from dflashq.prompts.records import records

log = logging.getLogger(__name__)


class PromptRow(NamedTuple):
    """One row of a file: its line (in an array: the number of the element), outcome and bytes."""

    line: int
    outcome: Outcome
    raw: bytes


def read_prompts(
    path: Path,
    index: DuplicateIdIndex | None = None,
    blank: Callable[[int], None] = ignore_blank_line,
) -> Iterator[PromptRow]:
    """Every row of one prompt file with what became of it; blank lines are not rows.

    `blank(line)` is called for each blank line, before the row behind it. One `index` for all files
    of a run finds ids that are repeated across them. InputError at once when the file cannot be
    read, and at its end, with the counts by reason, when no row is usable. Memory: a few MiB.
    Blocks on the disk.
    """
    index = index if index is not None else DuplicateIdIndex()
    reasons: Counter[str] = Counter()
    usable = False
    for line, raw, value in records(str(path), utf8_chunks(path), blank):
        if type(value) is MalformedRecord:
            outcome = rejected(value.why, value.detail)
        else:
            outcome = _outcome(value, index)
        if outcome.do == REJECT:
            reasons[outcome.why[0]] += 1
        else:
            usable = True
        yield PromptRow(line, outcome, raw)
    if not usable:
        raise _no_rows(path, reasons)


def _outcome(value: object, index: DuplicateIdIndex) -> Outcome:
    outcome = normalise(value)
    row = outcome.row
    if row is None or not isinstance(value, dict):
        return outcome
    given = value.get("id")
    # An id of digits alone is a row number of its source: joined sources repeat it legitimately.
    if type(given) is not str or not given or given.isdigit():
        return outcome
    repeated = index.repeated(given, prompt_key(row))
    return noted(outcome, "duplicate_id") if repeated else outcome


def _no_rows(path: Path, reasons: Counter[str]) -> InputError:
    if not reasons:
        return InputError(f"{path} has no rows: it is empty. Nothing was enqueued.")
    counts = ", ".join(f"{why} {count}" for why, count in reasons.most_common())
    return InputError(
        f"{path} has no rows that can be used: {reasons.total()} rejected ({counts}). "
        "Nothing was enqueued."
    )
