"""The fleet's metrics as Prometheus text, from the ledger: the monitor's `/metrics`."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dflashq.core import metrics
from dflashq.core.errors import LedgerError
from dflashq.core.metrics import Gauge
from dflashq.core.states import RunState
from dflashq.ledger import Ledger
from dflashq.operations.monitoring.insights import RunView, run_view
from dflashq.operations.monitoring.worker_view import WorkerView, worker_views
from dflashq.operations.runs.listing import statuses

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Values = Mapping[tuple[str, ...], float]


def render(ledger: Ledger) -> bytes:
    """The text of `/metrics`. Blocks on Redis; while that is away, one metric says so alone."""
    registry = CollectorRegistry()
    registry.register(_Fleet(ledger))
    return generate_latest(registry)


def family(
    metric: metrics.Metric, values: Values, common: Mapping[str, str] | None = None
) -> Metric:
    """One metric with its samples, by the values of its labels; each gets the `common` labels."""
    shared = dict(common or {})
    kind = CounterMetricFamily if metric.name.endswith("_total") else GaugeMetricFamily
    samples = kind(metric.name, metrics.described(metric), labels=[*metric.labels, *shared])
    for labels, value in sorted(values.items()):
        samples.add_metric([*labels, *shared.values()], value)
    return samples


class _Fleet(Collector):
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterable[Metric]:
        values = fleet_values(self._ledger)
        return [family(metric, values.get(metric, {})) for metric in metrics.FLEET.values()]


def fleet_values(ledger: Ledger) -> dict[Gauge, Values]:
    """The samples of every fleet metric; `dflashq_ledger_up` alone when Redis does not answer.

    Blocks on Redis.
    """
    try:
        used, maximum = ledger.memory()
        workers = worker_views(ledger.workers())
        runs = statuses(ledger)
    except LedgerError:
        return {metrics.LEDGER_UP: {(): 0}}
    return {
        metrics.LEDGER_UP: {(): 1},
        metrics.REDIS_MEMORY: {(): used},
        metrics.REDIS_MEMORY_MAX: {(): maximum},
        **_run_values([run_view(status, workers) for status in runs]),
        **_worker_values(workers),
    }


def _run_values(runs: list[RunView]) -> dict[Gauge, Values]:
    return {
        metrics.RUN_STATE: {(r.name, state_of(r)): 1 for r in runs},
        metrics.RUN_PROMPTS: {(r.name,): r.prompts for r in runs},
        metrics.RUN_ACCEPTED: {(r.name,): r.accepted for r in runs},
        metrics.RUN_REJECTED: {(r.name, k): n for r in runs for k, n in r.rejects.items()},
        metrics.RUN_OUTPUT_TOKENS: {(r.name,): r.output_tokens for r in runs},
        metrics.RUN_BATCHES: {(r.name, k): n for r in runs for k, n in _batches(r).items()},
        metrics.STAGE_BATCHES: {
            (r.name, stage, state): n
            for r in runs
            for stage, counts in r.stages.items()
            for state, n in counts.items()
        },
        metrics.RUN_TOKENS_PER_SECOND: {(r.name,): r.tokens_per_s for r in runs},
        metrics.RUN_LEFT: {(r.name,): r.left_s for r in runs if r.left_s is not None},
        metrics.KEPT_BYTES: {(r.name,): r.kept_bytes for r in runs},
    }


def state_of(run: RunView) -> str:
    """The run's state for a label: active, paused, cancelled, or finished (nothing is left)."""
    return "finished" if run.finished and run.state != RunState.CANCELLED else run.state


def _batches(run: RunView) -> dict[str, int]:
    row: dict[str, Any] = run.to_json()
    return {state: row[state] for state in ("pending", "leased", "done", "dead", "waiting")}


def _engine_state(worker: WorkerView) -> str:
    if not worker.alive:
        return "silent"
    return "sick" if worker.sick else worker.engine


def _worker_values(workers: list[WorkerView]) -> dict[Gauge, Values]:
    states = Tally(_engine_state(w) for w in workers)
    return {
        metrics.WORKERS: {(state,): count for state, count in states.items()},
        metrics.WORKER_SILENT: {(w.name,): w.silent_s for w in workers},
        metrics.WORKER_TOKENS_PER_SECOND: {
            (w.name,): w.tokens_per_s if w.alive else 0.0 for w in workers
        },
    }
