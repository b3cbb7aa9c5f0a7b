"""What one look at the ledger found: runs, batches, workers. Records and pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dflashq.core.estimates.forecast import Forecast, mixed_mean
from dflashq.ledger.models import BatchStatus, RunStatus
from dflashq.operations.monitoring.insights import RunView
from dflashq.operations.monitoring.worker_view import WorkerView

Counts = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch: state is pending, waiting (for the canary), leased, done or dead."""

    name: str
    state: str
    worker: str = ""
    attempts: int = 0
    kept: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """A run at the last look; `counts` are those of its done batches.

    `speed` is the mean of the last ten seconds, `speed_long` of the last ten minutes, tokens/s.

    `version` grows whenever a batch changed.
    """

    status: RunStatus
    view: RunView
    forecast: Forecast | None
    batches: tuple[Batch, ...]
    counts: Counts
    version: int
    speed: float = 0.0
    speed_long: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """One look at everything. `at` is this process's monotonic clock; `workers` as announced."""

    at: float
    now_ms: int
    runs: dict[str, ObservedRun] = field(default_factory=dict)
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    views: list[WorkerView] = field(default_factory=list)


def signature(status: RunStatus) -> tuple[Any, ...]:
    """Two looks with the same one found the same batches in the same states."""
    leased = tuple((b.name, b.worker) for b in status.leased)
    return (status.pending, status.done, status.dead, leased, status.batches, status.waits_for)


def known_batches(states: list[BatchStatus], waits_for: str) -> tuple[Batch, ...]:
    """The batches of a run; behind a canary the pending ones wait."""

    def state(one: BatchStatus) -> str:
        waits = one.state == "pending" and waits_for and one.name != waits_for
        return "waiting" if waits else one.state

    return tuple(Batch(b.name, state(b), b.worker, b.attempts, b.kept, b.reason) for b in states)


def with_leases(batches: tuple[Batch, ...], leased: list[BatchStatus]) -> tuple[Batch, ...]:
    """The same batches with what is kept of the leased ones now."""
    now = {b.name: b for b in leased}
    return tuple(
        replace(b, attempts=now[b.name].attempts, kept=now[b.name].kept) if b.name in now else b
        for b in batches
    )


def prompts_and_tokens(row: Mapping[str, int]) -> tuple[int, int]:
    """(prompts, output tokens) of what a done batch counts."""
    return row.get("prompts", 0), row.get("output_tokens", 0)


def left_mean(domains: dict[str, Any], done_share: float, overall: float) -> float:
    """Tokens a prompt of what is left: the domains that are behind weigh more."""
    rows = domains["domains"]
    asked = sum(row["prompts"] for row in rows) or 1
    had = sum(row["accepted"] + row["rejected"] for row in rows) or 1
    left, means = {}, {}
    for row in rows:
        settled = row["accepted"] + row["rejected"]
        left[row["domain"]] = max(0.0, row["prompts"] / asked - done_share * settled / had)
        if settled:
            means[row["domain"]] = row["tokens"] / settled
    return mixed_mean(left, means, overall)
