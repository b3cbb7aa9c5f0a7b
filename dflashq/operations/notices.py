"""Which notices are due, from what the ledger says: whoever caused them, whoever looks."""

from __future__ import annotations

from collections.abc import Iterator

from dflashq.core import notice
from dflashq.core.errors import UnknownRunError
from dflashq.core.notice import Notice
from dflashq.ledger import Ledger
from dflashq.ledger.records import RunStatus
from dflashq.operations.status import SILENT_S, run_view, worker_views

_SILENT_AT_MOST_S = 86400  # later it is no news, and its record in Redis may be gone


def statuses(ledger: Ledger) -> list[RunStatus]:
    """Every run as it is now. Blocks on Redis."""
    found = []
    for run in sorted(ledger.runs()):
        try:
            found.append(ledger.status(run))
        except UnknownRunError:
            continue  # listed, but wiped since
    return found


def of_run(ledger: Ledger, status: RunStatus, known_dead: set[str]) -> Iterator[Notice]:
    """What is worth a notice in a run, told or not. Blocks on Redis.

    `known_dead` are dead batches that need no second look: a thousand of them are not looked up
    at every tick.
    """
    run = status.name
    if status.state == "paused":
        yield notice.paused(run, status.reason)
    for batch in sorted(status.dead.keys() - known_dead):
        yield notice.dead_batch(run, batch, status.dead[batch], _last_ms(ledger, run, batch))
    if status.finished and status.state != "cancelled":
        view = run_view(status, [])
        counts = {"done": view.done, "dead": view.dead}
        counts |= {"accepted": view.accepted, "rejected": view.rejected}
        yield notice.finished(run, view.sentence, counts)


def _last_ms(ledger: Ledger, run: str, batch: str) -> int:
    story = ledger.story(run, batch)
    return int(story[-1]["at"]) if story else 0


def of_workers(ledger: Ledger) -> Iterator[Notice]:
    """The workers that fell silent without taking leave. Blocks on Redis."""
    rows = ledger.workers()
    for view in worker_views(rows):
        if 2 * SILENT_S < view.silent_s <= _SILENT_AT_MOST_S:
            host = str(rows[view.name].get("host", "?"))
            yield notice.worker_silent(view.name, host, view.silent_s, view.boot)
