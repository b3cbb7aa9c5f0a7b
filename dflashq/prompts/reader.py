"""Prompt files become outcomes, one a row, in a stream: what `enqueue` reads."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from dflashq.core.errors import InputError
from dflashq.prompts.duplicate_ids import DuplicateIdIndex, prompt_key
from dflashq.prompts.files import utf8_chunks
from dflashq.prompts.jsonl import MalformedRecord, nothing_to_tell
from dflashq.prompts.normalize import REJECT, Outcome, normalise, noted, rejected
from dflashq.prompts.records import records

log = logging.getLogger(__name__)


class PromptRow(NamedTuple):
    """One row of a file: its line (its element number in an array), outcome and bytes."""

    line: int
    outcome: Outcome
    raw: bytes


def read_prompts(
    path: Path, seen: DuplicateIdIndex | None = None, blank: Callable[[int], None] = nothing_to_tell
) -> Iterator[PromptRow]:
    """Every row of one prompt file with what became of it; blank lines are no rows.

    `blank(line)` is told of each blank line, before the row behind it.

    Give the same `seen` for all files of a run, so that repeated ids are found across them.
    Blocks on the disk, holds a few MiB. Raises InputError, at the end, when no row of the file
    is usable (with the counts by reason), and at once when the file cannot be read.
    """
    seen = seen if seen is not None else DuplicateIdIndex()
    reasons: Counter[str] = Counter()
    usable = False
    for line, raw, value in records(str(path), utf8_chunks(path), blank):
        if type(value) is MalformedRecord:
            outcome = rejected(value.why, value.detail)
        else:
            outcome = _outcome(value, seen)
        if outcome.do == REJECT:
            reasons[outcome.why[0]] += 1
        else:
            usable = True
        yield PromptRow(line, outcome, raw)
    if not usable:
        raise _no_rows(path, reasons)


def _outcome(value: object, seen: DuplicateIdIndex) -> Outcome:
    outcome = normalise(value)
    row = outcome.row
    if row is None or not isinstance(value, dict):
        return outcome
    given = value.get("id")
    # Digits alone are a row's number in its source: sources that were joined repeat it rightly.
    if type(given) is not str or not given or given.isdigit():
        return outcome
    repeated = seen.repeated(given, prompt_key(row))
    return noted(outcome, "duplicate_id") if repeated else outcome


def _no_rows(path: Path, reasons: Counter[str]) -> InputError:
    if not reasons:
        return InputError(f"{path} has no rows: it is empty. Nothing was enqueued.")
    counts = ", ".join(f"{why} {count}" for why, count in reasons.most_common())
    return InputError(
        f"{path} has no rows that can be used: {reasons.total()} rejected ({counts}). "
        "Nothing was enqueued."
    )
