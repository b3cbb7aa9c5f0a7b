"""Every metric that dflashq exposes, with its unit and help; names follow Prometheus' conventions.

Counters are objects of this module that any code counts on. Gauges are declared here and read when
metrics are collected. `FLEET` is what the monitor serves, from the ledger; `WORKER` is what one
worker serves; `ENGINE` are the metrics of its engine that a worker passes on.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

Labels = tuple[str, ...]


@dataclass(frozen=True)
class Gauge:
    """A value that is read when metrics are collected; a counter if its name ends in `_total`."""

    name: str
    unit: str
    help: str
    labels: Labels = ()


@dataclass(frozen=True)
class Counter:
    """Counts of this process by the values of its labels; safe from many threads.

    It begins at 0 with the process, as a Prometheus counter may.
    """

    name: str
    unit: str
    help: str
    labels: Labels = ()
    _counts: dict[Labels, float] = field(default_factory=dict, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.labels)

    def add(self, amount: float = 1, **labels: str) -> None:
        """Count; ValueError for labels other than the declared ones. Does not block."""
        if labels.keys() != self._names:
            raise ValueError(f"{self.name} has the labels {self.labels}, not {tuple(labels)}")
        values = tuple(map(labels.__getitem__, self.labels))
        with self._lock:
            self._counts[values] = self._counts.get(values, 0) + amount

    def counts(self) -> dict[Labels, float]:
        """The counts so far by label values; a counter without labels begins at 0."""
        with self._lock:
            return dict(self._counts) or ({} if self.labels else {(): 0})


Metric = Counter | Gauge
Declared = TypeVar("Declared", Counter, Gauge)
WORKER: dict[str, Metric] = {}
FLEET: dict[str, Gauge] = {}


def _worker(metric: Declared) -> Declared:
    WORKER[metric.name] = metric
    return metric


def _fleet(name: str, unit: str, text: str, *labels: str) -> Gauge:
    FLEET[name] = Gauge(name, unit, text, labels)
    return FLEET[name]


# --- a worker: what it did

GENERATED_TOKENS = _worker(
    Counter("dflashq_generated_tokens_total", "tokens", "Output tokens generated.", ("run",))
)
PROMPT_TOKENS = _worker(
    Counter("dflashq_prompt_tokens_total", "tokens", "Prompt tokens of generations.", ("run",))
)
GENERATIONS = _worker(
    Counter("dflashq_generations_total", "generations", "Assistant turns generated.", ("run",))
)
ACCEPTED = _worker(
    Counter("dflashq_accepted_total", "prompts", "Prompts accepted as they were judged.", ("run",))
)
REJECTED = _worker(
    Counter(
        "dflashq_rejected_total",
        "prompts",
        "Prompts rejected as they were judged, by reason.",
        ("run", "reason"),
    )
)
ATTEMPTS = _worker(
    Counter(
        "dflashq_batch_attempts_total",
        "attempts",
        "Attempts on batches that ended, by outcome: done, handed_back, held, lost, dead, failed.",
        ("run", "outcome"),
    )
)
LEASE_LOST = _worker(
    Counter("dflashq_lease_lost_total", "leases", "Leases that another worker took.", ("run",))
)
KEPT = _worker(
    Counter("dflashq_kept_entries_total", "entries", "Finished work stored in Redis.", ("run",))
)
S3_ERRORS = _worker(
    Counter("dflashq_s3_errors_total", "errors", "Calls that S3 refused or left alone.", ("verb",))
)
REDIS_ERRORS = _worker(
    Counter(
        "dflashq_redis_errors_total",
        "errors",
        "Calls that Redis refused (kind refused) or left unanswered (kind unreachable).",
        ("kind",),
    )
)
ENGINE_FAILURES = _worker(
    Counter(
        "dflashq_engine_failures_total",
        "requests",
        "Requests that the engine failed on, by HTTP status; `none` where no answer came.",
        ("status",),
    )
)
NOTICES = _worker(
    Counter(
        "dflashq_notices_total",
        "notices",
        "Notices for people by event and outcome: sent, retried, given_up.",
        ("event", "outcome"),
    )
)
THREAD_ERRORS = _worker(
    Counter(
        "dflashq_thread_errors_total",
        "errors",
        "Unexpected failures in background threads, which go on; other: a library's thread.",
        ("thread",),
    )
)

# --- a worker: how it is now

IN_FLIGHT = _worker(Gauge("dflashq_in_flight", "requests", "Generations that the engine has now."))
IN_FLIGHT_LIMIT = _worker(
    Gauge("dflashq_in_flight_limit", "requests", "Generations admitted at once at most.")
)
GATE_WAITING = _worker(
    Gauge("dflashq_gate_waiting", "requests", "Generations that wait for admission.")
)
GATE_CLOSED = _worker(
    Gauge(
        "dflashq_gate_closed", "", "1 for every reason for which the gate is closed.", ("reason",)
    )
)
KEEP_FULL = _worker(
    Gauge("dflashq_keep_full", "", "1 while kept work has used its budget in Redis.")
)
ENGINE_UP = _worker(Gauge("dflashq_engine_up", "", "1 while the engine is ready."))
ENGINE_SICK = _worker(
    Gauge("dflashq_engine_sick", "", "1 while the engine answers with errors only.")
)
ENGINE_RESTARTS = _worker(
    Gauge("dflashq_engine_restarts_total", "restarts", "Restarts of the engine by this worker.")
)
BATCHES_AT_WORK = _worker(
    Gauge("dflashq_batches_at_work", "batches", "Batches that this worker holds.", ("run",))
)
HINTS_TAKEN = _worker(Gauge("dflashq_hints_taken_total", "hints", "Hints taken from the queue."))
HEARTBEAT_AGE = _worker(
    Gauge(
        "dflashq_heartbeat_age_seconds",
        "seconds",
        "Time since Redis last answered the heartbeat; 0 while no lease is held.",
    )
)

# --- the fleet: what the ledger knows

LEDGER_UP = _fleet("dflashq_ledger_up", "", "1 while Redis answers the monitor.")
REDIS_MEMORY = _fleet("dflashq_redis_memory_bytes", "bytes", "Memory that Redis uses.")
REDIS_MEMORY_MAX = _fleet(
    "dflashq_redis_memory_max_bytes", "bytes", "Redis' maxmemory; 0 when it has none."
)
RUN_STATE = _fleet(
    "dflashq_run_state",
    "",
    "1 for the state that the run is in: active, paused, cancelled, finished.",
    "run",
    "state",
)
RUN_PROMPTS = _fleet("dflashq_run_prompts", "prompts", "Prompts of the run.", "run")
RUN_ACCEPTED = _fleet(
    "dflashq_run_accepted_prompts", "prompts", "Accepted prompts in committed batches.", "run"
)
RUN_REJECTED = _fleet(
    "dflashq_run_rejected_prompts",
    "prompts",
    "Rejected prompts in committed batches, by reason; a revision takes them back.",
    "run",
    "reason",
)
RUN_OUTPUT_TOKENS = _fleet(
    "dflashq_run_output_tokens", "tokens", "Output tokens in committed batches.", "run"
)
RUN_BATCHES = _fleet(
    "dflashq_run_batches",
    "batches",
    "Batches by state: pending, leased, done, dead, waiting (held back by canary or enqueue).",
    "run",
    "state",
)
STAGE_BATCHES = _fleet(
    "dflashq_stage_batches",
    "batches",
    "Batches in a stage behind generate (rows) by state: pending, leased, done, dead.",
    "run",
    "stage",
    "state",
)
RUN_TOKENS_PER_SECOND = _fleet(
    "dflashq_run_tokens_per_second",
    "tokens per second",
    "What the workers on the run announced last, added up.",
    "run",
)
RUN_LEFT = _fleet(
    "dflashq_run_left_seconds", "seconds", "Estimated time left; absent when unknown.", "run"
)
KEPT_BYTES = _fleet(
    "dflashq_kept_bytes", "bytes", "Kept work of unfinished batches in Redis.", "run"
)
WORKERS = _fleet(
    "dflashq_workers", "workers", "Announced workers by engine state, sick or silent.", "engine"
)
WORKER_SILENT = _fleet(
    "dflashq_worker_silent_seconds", "seconds", "Time since the worker announced itself.", "worker"
)
WORKER_TOKENS_PER_SECOND = _fleet(
    "dflashq_worker_tokens_per_second",
    "tokens per second",
    "Output tokens per second, as the worker announced.",
    "worker",
)

# --- the engine: what a worker passes on and the dashboard and rules live by

ENGINE = frozenset(
    {
        "sglang:num_running_reqs",
        "sglang:num_queue_reqs",
        "sglang:gen_throughput",
        "sglang:token_usage",
        "sglang:mamba_usage",
        "sglang:spec_accept_length",
        "sglang:generation_tokens_total",
        "sglang:num_retracted_requests_total",
    }
)


def described(metric: Metric) -> str:
    """The help text with the unit, as it is exposed."""
    return f"{metric.help} Unit: {metric.unit}." if metric.unit else metric.help


def counted(metrics: Mapping[str, Metric]) -> list[Counter]:
    """The counters among them."""
    return [metric for metric in metrics.values() if isinstance(metric, Counter)]
