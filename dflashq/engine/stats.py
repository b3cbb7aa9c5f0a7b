"""The engine's `/metrics`: Prometheus text parsed to numbers, and the few that a worker uses."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

_METRIC = re.compile(r"^((?:sglang|vllm):\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_MODE = re.compile(r'(?:^|,)mode="(\w+)"')

# SGLang's names first, then vLLM's for the same quantity: the first that exists is taken. Of the
# progress counters all are read: some grow with each step of the engine, some only when a request
# ends.
_RUNNING = ("sglang:num_running_reqs", "vllm:num_requests_running")
_QUEUED = ("sglang:num_queue_reqs", "vllm:num_requests_waiting")
_KV = ("sglang:full_token_usage", "sglang:token_usage", "vllm:kv_cache_usage_perc")
_RETRACTED = ("sglang:num_retracted_requests_total", "vllm:num_preemptions_total")
_QUEUE = ("sglang:queue_time_seconds", "vllm:request_queue_time_seconds")
_PROGRESS = (
    "sglang:realtime_tokens_total",
    "sglang:generation_tokens_total",
    "sglang:prompt_tokens_total",
    "sglang:num_requests_total",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """An engine's metrics at one moment.

    `running`, `queued`: requests. `accept_length`: tokens per verification step of speculation.
    `kv_use`, `state_use`: fractions of the memory for the KV cache and for recurrent state.
    Since the engine's start: `retracted` counts requests that it took back for lack of memory,
    `queue_s` the seconds that requests waited inside it, `queued_ever` these requests, and
    `progress` holds the counters of which at least one grows while it works.
    """

    running: int = 0
    queued: int = 0
    accept_length: float = 0.0
    kv_use: float = 0.0
    state_use: float = 0.0
    retracted: int = 0
    queue_s: float = 0.0
    queued_ever: int = 0
    progress: dict[str, float] = field(default_factory=dict)

    def row(self) -> dict[str, float]:
        """The fields that a worker publishes about its engine, rounded."""
        return {
            "queued": self.queued,
            "accept_length": round(self.accept_length, 2),
            "kv_use": round(self.kv_use, 3),
            "state_use": round(self.state_use, 3),
            "retractions": self.retracted,
        }


def parse_metrics(text: str) -> dict[str, float]:
    """Parse Prometheus text: the sum over labels by name, and by `name.mode` for a label `mode`.

    Only metrics of SGLang and vLLM are read, and no histogram buckets.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    for name, labels, value in _METRIC.findall(text):
        if name.endswith("_bucket"):
            continue
        sums[name] += float(value)
        if mode := _MODE.search(labels):
            sums[f"{name}.{mode[1]}"] += float(value)
    return dict(sums)


def engine_stats(metrics: Mapping[str, float]) -> EngineStats | None:
    """The EngineStats of parsed metrics; None when they hold no counter of tokens or requests."""
    progress = {name: metrics[name] for name in _PROGRESS if name in metrics}
    if not progress:
        return None

    def first(*names: str) -> float:
        return next((metrics[name] for name in names if name in metrics), 0.0)

    return EngineStats(
        running=int(first(*_RUNNING)),
        queued=int(first(*_QUEUED)),
        accept_length=first("sglang:spec_accept_length"),
        kv_use=first(*_KV),
        state_use=first("sglang:mamba_usage"),
        retracted=int(first(*_RETRACTED)),
        queue_s=first(*(f"{name}_sum" for name in _QUEUE)),
        queued_ever=int(first(*(f"{name}_count" for name in _QUEUE))),
        progress=progress,
    )
