"""Which notices are due, from what the ledger says: whoever caused them, whoever looks."""

from __future__ import annotations

from collections.abc import Iterator

from dflashq.core import alerts
from dflashq.core.alerts import Alert
from dflashq.core.errors import UnknownRunError
from dflashq.ledger import Ledger
from dflashq.ledger.models import RunStatus
from dflashq.operations.monitoring.insights import run_view
from dflashq.operations.monitoring.worker_view import SILENT_S, worker_views

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


def of_run(ledger: Ledger, status: RunStatus, known_dead: set[str]) -> Iterator[Alert]:
    """What is worth a notice in a run, told or not. Blocks on Redis.

    `known_dead` are dead batches that need no second look: a thousand of them are not looked up
    at every tick.
    """
    run = status.name
    if status.state == "paused":
        yield alerts.paused(run, status.reason)
    for batch in sorted(status.dead.keys() - known_dead):
        yield alerts.dead_batch(
            *(run, batch, status.dead[batch], _last_ms(ledger, run, batch)),
            _after_death(status, batch),
        )
    if status.finished and status.state != "cancelled":
        view = run_view(status, [])
        counts = {"done": view.done, "dead": view.dead}
        counts |= {"accepted": view.accepted, "rejected": view.rejected}
        yield alerts.finished(run, view.sentence, counts)


def _after_death(status: RunStatus, batch: str) -> str:
    """What a batch's death means for its run, and how it is revived."""
    run = status.name
    revives = f"`dflashq backfill {run}` revives it"
    if status.state == "cancelled":
        return "The run is cancelled: it is not run again"
    if status.finished:
        return f"Nothing else of the run is left to do; {revives}"
    if status.waits_for == batch:
        return (
            f"It is the canary, so nothing else of the run is begun: `dflashq resume {run}` tries "
            f"it again, `dflashq resume {run} --accept` goes on without it"
        )
    if status.state == "paused":
        return f"The run is paused; {revives}, `dflashq resume {run}` lets it go on"
    return f"The run goes on; {revives}"


def _last_ms(ledger: Ledger, run: str, batch: str) -> int:
    story = ledger.story(run, batch)
    return int(story[-1]["at"]) if story else 0


def of_workers(ledger: Ledger) -> Iterator[Alert]:
    """The workers that fell silent without taking leave, or are sick. Blocks on Redis."""
    rows = ledger.workers()
    for view in worker_views(rows):
        if view.alive and view.sick:
            since_ms = int(rows[view.name].get("sick_since") or 0)
            yield alerts.engine_sick(view.name, view.boot, view.sick, since_ms)
        if 2 * SILENT_S < view.silent_s <= _SILENT_AT_MOST_S:
            host = str(rows[view.name].get("host", "?"))
            yield alerts.worker_silent(view.name, host, view.silent_s, view.boot)
