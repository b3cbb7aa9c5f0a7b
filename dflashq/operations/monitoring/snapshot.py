"""What one poll of the ledger read: runs, batches, workers. Records and pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dflashq.core.estimates.forecast import Forecast, mixed_mean
from dflashq.core.states import BatchState
from dflashq.ledger.models import BatchStatus, RunStatus
from dflashq.operations.monitoring.insights import RunView
from dflashq.operations.monitoring.worker_view import WorkerView

Counts = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """A run as a poll read it.

    `counts` maps the name of each done batch to its counters. `speed` is the mean of the last ten
    seconds and `speed_long` of the last ten minutes, both in tokens/s. `version` grows whenever a
    batch changes.
    """

    status: RunStatus
    view: RunView
    forecast: Forecast | None
    batches: tuple[BatchStatus, ...]
    counts: Counts
    version: int
    speed: float = 0.0
    speed_long: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """All runs and workers as one poll read them.

    `at` is in seconds of this process's monotonic clock, `now_ms` in milliseconds of Redis' clock.
    `workers` maps each name to the row that it announced, `views` are the same, parsed.
    """

    at: float
    now_ms: int
    runs: dict[str, ObservedRun] = field(default_factory=dict)
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    views: list[WorkerView] = field(default_factory=list)


def signature(status: RunStatus) -> tuple[Any, ...]:
    """Equal for two statuses of a run whose batches are the same and in the same states."""
    leased = tuple((b.name, b.worker) for b in status.leased)
    return (status.pending, status.done, status.dead, leased, status.batches, status.waits_for)


def known_batches(batches: list[BatchStatus], waits_for: str) -> tuple[BatchStatus, ...]:
    """The batches of a run; the pending ones are waiting while there is a canary, `waits_for`."""

    def waits(batch: BatchStatus) -> bool:
        return batch.state == BatchState.PENDING and batch.name != waits_for

    if not waits_for:
        return tuple(batches)
    return tuple(replace(b, state=BatchState.WAITING) if waits(b) else b for b in batches)


def with_leases(
    batches: tuple[BatchStatus, ...], leased: list[BatchStatus]
) -> tuple[BatchStatus, ...]:
    """The same batches with the attempts and the kept work that the leased ones have now."""
    current = {batch.name: batch for batch in leased}
    return tuple(
        replace(b, attempts=current[b.name].attempts, kept=current[b.name].kept)
        if b.name in current
        else b
        for b in batches
    )


def prompts_and_tokens(row: Mapping[str, int]) -> tuple[int, int]:
    """(prompts, output tokens) in the counters of a done batch."""
    return row.get("prompts", 0), row.get("output_tokens", 0)


def left_mean(domains: dict[str, Any], done_share: float, overall: float) -> float:
    """Expected output tokens of a prompt that is left: domains that are behind weigh more.

    `domains` is what `count_domains` returns, `done_share` the share of prompts that are settled,
    `overall` the mean of all settled prompts, for a domain of which none is.
    """
    rows = domains["domains"]
    prompts = sum(row["prompts"] for row in rows) or 1
    settled_prompts = sum(row["accepted"] + row["rejected"] for row in rows) or 1
    left, means = {}, {}
    for row in rows:
        settled = row["accepted"] + row["rejected"]
        share_done = done_share * settled / settled_prompts
        left[row["domain"]] = max(0.0, row["prompts"] / prompts - share_done)
        if settled:
            means[row["domain"]] = row["tokens"] / settled
    return mixed_mean(left, means, overall)
