"""What became of the lines of prompt files, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator

from dflashq.core.wording import counted
from dflashq.operations.spool import Spool

FIRST = 3


def summary_lines(spool: Spool) -> Iterator[str]:
    """Counts, then each reason with the first lines that have it."""
    counts = spool.counts
    rows = sum(counts.values())
    yield (
        f"{counted(rows, 'row')}: {counts['accept']:,} accepted, "
        f"{counts['normalise']:,} normalised, {counts['reject']:,} rejected"
    )
    places = _first_places(spool)
    for do, verb in (("normalise", "normalised"), ("reject", "rejected"), ("skip", "skipped")):
        for why, count in spool.reasons.get(do, {}).items():
            shown = ", ".join(places[do, why])
            rest = f" and {count - FIRST:,} more" if count > FIRST else ""
            yield f"  {verb} {why}: {count:,} ({shown}{rest})"


def reject_lines(spool: Spool) -> Iterator[str]:
    """Where the rejected lines are."""
    if spool.rejected_path is not None:
        yield f"  the rejected lines are in {spool.rejected_path}"


def _first_places(spool: Spool) -> dict[tuple[str, str], list[str]]:
    """`file:line` of the first few lines by (do, reason); reads until each reason has its own."""
    places: dict[tuple[str, str], list[str]] = {
        (do, why): [] for do, reasons in spool.reasons.items() for why in reasons
    }
    wanted = sum(min(FIRST, n) for reasons in spool.reasons.values() for n in reasons.values())
    with spool.records_path.open(encoding="utf-8") as records:
        for line in records:
            if not wanted:
                break
            row = json.loads(line)
            for why in row["why"]:
                found = places[row["do"], why]
                if len(found) < FIRST:
                    found.append(f"{row['file']}:{row['line']}")
                    wanted -= 1
    return places
