"""The JSON bodies of the API, from a snapshot. Pure functions; the names of the keys are stable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from dflashq.core.states import BatchState, RunState
from dflashq.ledger.models import BatchStatus
from dflashq.operations.monitoring.run_condition import Condition
from dflashq.operations.monitoring.snapshot import FleetSnapshot, ObservedRun
from dflashq.operations.monitoring.worker_view import SILENT_S

Row = dict[str, Any]
STATES = tuple(state.value for state in BatchState)
BATCHES_A_PAGE, BATCHES_AT_MOST = 500, 1000
WORKERS_A_PAGE, WORKERS_AT_MOST = 50, 500
WORKER_FIELDS = (
    "host",
    "boot",
    "gpu",
    "profile",
    "engine",
    "in_flight",
    "limit",
    "waiting",
    "queued",
    "kv_use",
    "accept_length",
    "tokens_per_s",
    "output_tokens",
    "restarts",
    "last_error",
    "silent_s",
    "sick",
)
_REJECTED = "rejected_"


def run_row(observed: ObservedRun) -> Row:
    """One run: the keys of `dflashq status --json`, its forecast, the version of its batches."""
    row = asdict(observed.view)
    row["ended"] = observed.view.finished
    row["needs_attention"] = Condition(observed.view.condition).needs_attention
    row["forecast"] = asdict(observed.forecast) if observed.forecast is not None else None
    row["batches_version"] = observed.version
    return row


def overview(fleet: FleetSnapshot) -> Row:
    """All runs, those at work first, and the workers in numbers."""
    runs = sorted(
        fleet.runs.values(), key=lambda observed: (_rank(observed), -observed.status.created_ms)
    )
    return {"runs": [run_row(observed) for observed in runs], "workers": fleet_row(fleet)}


def _rank(observed: ObservedRun) -> int:
    """Where a run stands in the overview: active, paused, finished, cancelled."""
    if observed.view.finished and observed.view.state == RunState.ACTIVE:
        return 2
    return {RunState.PAUSED: 1, RunState.CANCELLED: 3}.get(observed.status.state, 0)


def fleet_row(fleet: FleetSnapshot) -> Row:
    """The workers counted: all, alive, silent, sick, without a ready engine; and their tokens/s."""
    alive = [view for view in fleet.views if view.alive]
    return {
        "known": len(fleet.views),
        "alive": len(alive),
        "silent": len(fleet.views) - len(alive),
        "sick": sum(1 for view in alive if view.sick),
        "not_ready": sum(1 for view in alive if view.engine != "ready"),
        "tokens_per_s": round(sum(view.tokens_per_s for view in alive), 1),
    }


def batches_page(
    observed: ObservedRun,
    *,
    state: str = "",
    reason: str = "",
    offset: int = 0,
    limit: int = BATCHES_A_PAGE,
) -> Row:
    """A page of the batches, in order: those in `state` and with prompts rejected for `reason`.

    `segments` sums up every page, so that ten thousand batches fit a screen.
    """
    chosen: Sequence[BatchStatus] = observed.batches
    if state:
        chosen = [batch for batch in chosen if batch.state == state]
    if reason:
        name = _REJECTED + reason
        chosen = [b for b in chosen if observed.counts.get(b.name, {}).get(name, 0) > 0]
    limit = max(1, min(limit, BATCHES_AT_MOST))
    page = chosen[offset : offset + limit]
    return {
        "run": observed.view.name,
        "version": observed.version,
        "total": len(chosen),
        "offset": offset,
        "limit": limit,
        "unborn": observed.view.waiting,
        "states": _states(observed.batches),
        "segments": list(_segments(chosen, limit)),
        "batches": [batch_row(batch, observed) for batch in page],
    }


def batch_row(batch: BatchStatus, observed: ObservedRun) -> Row:
    """One batch; its counts are null, and 0 rejected, until it is done."""
    counts = observed.counts.get(batch.name, {})
    return {
        "batch": batch.name,
        "state": batch.state,
        "worker": batch.worker,
        "attempts": batch.attempts,
        "kept": batch.kept,
        "reason": batch.reason,
        "prompts": counts.get("prompts"),
        "accepted": counts.get("accepted"),
        "rejected": sum(n for name, n in counts.items() if name.startswith(_REJECTED)),
        "output_tokens": counts.get("output_tokens"),
    }


def rejects_of(batch: str, observed: ObservedRun) -> Row:
    """Rejected prompts of a done batch, by reason."""
    counts = observed.counts.get(batch, {})
    return {k.removeprefix(_REJECTED): n for k, n in counts.items() if k.startswith(_REJECTED)}


def _states(batches: Iterable[BatchStatus]) -> Row:
    counts: Counter[str] = Counter(batch.state for batch in batches)
    return {state: counts.get(state, 0) for state in STATES}


def _segments(batches: Sequence[BatchStatus], limit: int) -> Iterable[Row]:
    for offset in range(0, len(batches), limit):
        part = batches[offset : offset + limit]
        ends = {"offset": offset, "first": part[0].name, "last": part[-1].name}
        yield ends | _states(part)


def workers_page(
    fleet: FleetSnapshot, *, run: str = "", offset: int = 0, limit: int = WORKERS_A_PAGE
) -> Row:
    """A page of the workers, those with a problem first; with `run`, only those at work on it."""
    rows = [worker_row(name, row) for name, row in fleet.workers.items()]
    if run:
        rows = [row for row in rows if any(b.rpartition("/")[0] == run for b in row["batches"])]
    rows.sort(key=lambda row: (-row["trouble"], row["worker"]))
    limit = max(1, min(limit, WORKERS_AT_MOST))
    return {
        "total": len(rows),
        "offset": offset,
        "limit": limit,
        "alive": sum(1 for row in rows if row["alive"]),
        "sick": sum(1 for row in rows if row["trouble"]),
        "workers": rows[offset : offset + limit],
    }


def worker_row(name: str, row: Row) -> Row:
    """One worker; what it does not announce is null.

    `trouble` is 0 for a healthy worker, 1 for a closed gate, 2 for an engine that is sick or not
    ready, 3 for a silent worker.
    """
    alive = int(row["silent_s"]) <= SILENT_S
    engine = row.get("engine")
    announced = {field: row.get(field) for field in WORKER_FIELDS}
    announced["boot"] = row.get("boot") or None
    closed = list(row.get("closed", ()))
    trouble = 0
    if not alive:
        trouble = 3
    elif engine not in ("ready", None) or row.get("sick"):
        trouble = 2
    elif closed:
        trouble = 1
    lists = {"closed": closed, "batches": list(row.get("batches", ()))}
    return {"worker": name, "alive": alive, "trouble": trouble, **announced, **lists}
