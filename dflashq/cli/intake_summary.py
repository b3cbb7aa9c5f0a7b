"""What became of the lines of prompt files, as text."""

from __future__ import annotations

import json
from collections.abc import Iterator

from dflashq.core.humanize import counted
from dflashq.prompts.batches import PreparedBatches

FIRST = 3


def summary_lines(prepared: PreparedBatches) -> Iterator[str]:
    """Counts, then each reason with the first lines that have it."""
    counts = prepared.counts
    rows = sum(counts.values())
    yield (
        f"{counted(rows, 'row')}: {counts['accept']:,} accepted, "
        f"{counts['normalise']:,} normalised, {counts['reject']:,} rejected"
    )
    places = _first_places(prepared)
    for do, verb in (("normalise", "normalised"), ("reject", "rejected"), ("skip", "skipped")):
        for why, count in prepared.reasons.get(do, {}).items():
            shown = ", ".join(places[do, why])
            rest = f" and {count - FIRST:,} more" if count > FIRST else ""
            yield f"  {verb} {why}: {count:,} ({shown}{rest})"


def reject_lines(prepared: PreparedBatches) -> Iterator[str]:
    """The file with the rejected lines, if there is one."""
    if prepared.rejected_path is not None:
        yield f"  the rejected lines are in {prepared.rejected_path}"


def _first_places(prepared: PreparedBatches) -> dict[tuple[str, str], list[str]]:
    """`file:line` of the first few lines by (do, reason); reads until all of them are known."""
    places: dict[tuple[str, str], list[str]] = {
        (do, why): [] for do, reasons in prepared.reasons.items() for why in reasons
    }
    missing = sum(min(FIRST, n) for reasons in prepared.reasons.values() for n in reasons.values())
    with prepared.records_path.open(encoding="utf-8") as records:
        for line in records:
            if not missing:
                break
            row = json.loads(line)
            for why in row["why"]:
                first_places = places[row["do"], why]
                if len(first_places) < FIRST:
                    first_places.append(f"{row['file']}:{row['line']}")
                    missing -= 1
    return places
