"""What the API says, from the last look: stable names, plain JSON. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from dflashq.operations.monitoring.run_condition import Condition
from dflashq.operations.monitoring.snapshot import Batch, FleetSnapshot, ObservedRun

Row = dict[str, Any]
STATES = ("pending", "waiting", "leased", "done", "dead")
BATCHES_A_PAGE, BATCHES_AT_MOST = 500, 1000
WORKERS_A_PAGE, WORKERS_AT_MOST = 50, 500
SILENT_S = 30
_REJECTED = "rejected_"


def run_row(one: ObservedRun) -> Row:
    """One run: the names of `dflashq status RUN --json`, its forecast, its versions."""
    row = asdict(one.view)
    row["ended"] = one.view.finished
    row["needs_attention"] = Condition(one.view.condition).needs_attention
    row["forecast"] = asdict(one.forecast) if one.forecast is not None else None
    row["batches_version"] = one.version
    return row


def overview(seen: FleetSnapshot) -> Row:
    """All runs, those at work first, and the workers in numbers."""
    rank = {"active": 0, "paused": 1, "cancelled": 3}
    runs = sorted(
        seen.runs.values(),
        key=lambda one: (
            2 if one.view.finished and one.view.state == "active" else rank.get(one.view.state, 0),
            -one.status.created_ms,
        ),
    )
    return {"runs": [run_row(one) for one in runs], "workers": fleet_row(seen)}


def fleet_row(seen: FleetSnapshot) -> Row:
    """The workers counted: all, alive, silent, sick, without an engine, tokens/s of the living."""
    alive = [view for view in seen.views if view.alive]
    return {
        "known": len(seen.views),
        "alive": len(alive),
        "silent": len(seen.views) - len(alive),
        "sick": sum(1 for view in alive if view.sick),
        "not_ready": sum(1 for view in alive if view.engine != "ready"),
        "tokens_per_s": round(sum(view.tokens_per_s for view in alive), 1),
    }


def batches_answer(
    one: ObservedRun,
    *,
    state: str = "",
    reason: str = "",
    offset: int = 0,
    limit: int = BATCHES_A_PAGE,
) -> Row:
    """A page of the batches, in order; with `state` or `reject reason` only those.

    `segments` sum up every page, so that ten thousand batches fit a screen.
    """
    chosen: Sequence[Batch] = one.batches
    if state:
        chosen = [batch for batch in chosen if batch.state == state]
    if reason:
        name = _REJECTED + reason
        chosen = [b for b in chosen if one.counts.get(b.name, {}).get(name, 0) > 0]
    limit = max(1, min(limit, BATCHES_AT_MOST))
    page = chosen[offset : offset + limit]
    return {
        "run": one.view.name,
        "version": one.version,
        "total": len(chosen),
        "offset": offset,
        "limit": limit,
        "unborn": one.view.waiting,
        "states": _states(one.batches),
        "segments": list(_segments(chosen, limit)),
        "batches": [batch_row(batch, one) for batch in page],
    }


def batch_row(batch: Batch, one: ObservedRun) -> Row:
    """One batch; the counts are there once it is done."""
    counts = one.counts.get(batch.name, {})
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


def rejects_of(batch: str, one: ObservedRun) -> Row:
    """Rejected prompts of a done batch, by reason."""
    counts = one.counts.get(batch, {})
    return {k.removeprefix(_REJECTED): n for k, n in counts.items() if k.startswith(_REJECTED)}


def _states(batches: Iterable[Batch]) -> Row:
    counts = Counter(batch.state for batch in batches)
    return {state: counts.get(state, 0) for state in STATES}


def _segments(batches: Sequence[Batch], limit: int) -> Iterable[Row]:
    for offset in range(0, len(batches), limit):
        part = batches[offset : offset + limit]
        ends = {"offset": offset, "first": part[0].name, "last": part[-1].name}
        yield ends | _states(part)


def workers_answer(
    seen: FleetSnapshot, *, run: str = "", offset: int = 0, limit: int = WORKERS_A_PAGE
) -> Row:
    """A page of the workers, those that need a look first; with `run` only its own."""
    rows = [worker_row(name, row) for name, row in seen.workers.items()]
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
    """One worker; what it does not announce is null. `trouble`: 0 fine to 3 silent."""
    alive = int(row["silent_s"]) <= SILENT_S
    engine = row.get("engine")
    told = {
        field: row.get(field)
        for field in (
            *(
                "host",
                "boot",
                "gpu",
                "profile",
                "engine",
                "in_flight",
                "limit",
                "waiting",
                "queued",
            ),
            *("kv_use", "accept_length", "tokens_per_s", "output_tokens", "restarts"),
            *("last_error", "silent_s", "sick"),
        )
    }
    told["boot"] = row.get("boot") or None
    closed = list(row.get("closed", ()))
    trouble = 0
    if not alive:
        trouble = 3
    elif engine not in ("ready", None) or row.get("sick"):
        trouble = 2
    elif closed:
        trouble = 1
    kept = {"closed": closed, "batches": list(row.get("batches", ()))}
    return {"worker": name, "alive": alive, "trouble": trouble, **told, **kept}
