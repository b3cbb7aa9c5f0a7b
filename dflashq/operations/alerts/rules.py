"""Which alerts are due, derived from the ledger alone."""

from __future__ import annotations

from collections.abc import Iterator

from dflashq.core import alerts
from dflashq.core.alerts import Alert
from dflashq.core.states import RunState
from dflashq.ledger import Ledger
from dflashq.ledger.models import RunStatus
from dflashq.operations.monitoring.insights import run_view
from dflashq.operations.monitoring.worker_view import SILENT_S, worker_views

# Later it is no news, and the record that the alert was delivered may be gone from Redis.
_SILENT_AT_MOST_S = 86400


def of_run(ledger: Ledger, status: RunStatus, known_dead: set[str]) -> Iterator[Alert]:
    """The alerts about a run, delivered before or not. Blocks on Redis. LedgerError.

    `known_dead` are dead batches whose alert has arrived: they are skipped, so that a thousand of
    them cost no read each time.
    """
    run = status.name
    if status.state == RunState.PAUSED:
        yield alerts.paused(run, status.reason)
    for batch in sorted(status.dead.keys() - known_dead):
        yield alerts.dead_batch(
            run,
            batch,
            status.dead[batch],
            _last_ms(ledger, run, batch),
            _consequence(status, batch),
        )
    if status.finished and status.state != RunState.CANCELLED:
        view = run_view(status, [])
        counts = {"done": view.done, "dead": view.dead}
        counts |= {"accepted": view.accepted, "rejected": view.rejected}
        yield alerts.finished(run, view.sentence, counts)


def _consequence(status: RunStatus, batch: str) -> str:
    """What a batch's death means for its run, and how it is revived."""
    run = status.name
    revives = f"`dflashq backfill {run}` revives it"
    if status.state == RunState.CANCELLED:
        return "The run is cancelled: it is not run again"
    if status.finished:
        return f"Nothing else of the run is left to do; {revives}"
    if status.waits_for == batch:
        return (
            f"It is the canary, so nothing else of the run is begun: `dflashq resume {run}` tries "
            f"it again, `dflashq resume {run} --accept` goes on without it"
        )
    if status.state == RunState.PAUSED:
        return f"The run is paused; {revives}, `dflashq resume {run}` lets it go on"
    return f"The run goes on; {revives}"


def _last_ms(ledger: Ledger, run: str, batch: str) -> int:
    story = ledger.story(run, batch)
    return int(story[-1]["at"]) if story else 0


def of_workers(ledger: Ledger) -> Iterator[Alert]:
    """The alerts about workers that are sick, or fell silent without ending in order.

    Blocks on Redis. LedgerError.
    """
    rows = ledger.workers()
    for view in worker_views(rows):
        if view.alive and view.sick:
            since_ms = int(rows[view.name].get("sick_since") or 0)
            yield alerts.engine_sick(view.name, view.boot, view.sick, since_ms)
        if 2 * SILENT_S < view.silent_s <= _SILENT_AT_MOST_S:
            host = str(rows[view.name].get("host", "?"))
            yield alerts.worker_silent(view.name, host, view.silent_s, view.boot)
