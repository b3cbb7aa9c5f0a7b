"""The few numbers of `/metrics` that a worker lives by."""

from __future__ import annotations

from dflashq.engine.stats import engine_stats, parse_metrics

SGLANG = """
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",tp_rank="0"} 60.0
sglang:num_queue_reqs{engine_type="unified"} 12.0
sglang:spec_accept_length{a="b"} 3.214
sglang:token_usage{a="b"} 0.97
sglang:full_token_usage{a="b"} 0.81239
sglang:mamba_usage{a="b"} 0.97
sglang:num_retracted_reqs{a="b"} 0.0
sglang:num_retracted_requests_total{a="b"} 7.0
sglang:queue_time_seconds_bucket{le="0.1"} 3.0
sglang:queue_time_seconds_sum{a="b"} 120.5
sglang:queue_time_seconds_count{a="b"} 40.0
sglang:realtime_tokens_total{mode="decode",a="b"} 900.0
sglang:realtime_tokens_total{mode="prefill_compute",a="b"} 100.0
sglang:generation_tokens_total{a="b"} 850.0
"""
VLLM = """
vllm:num_requests_running{engine="0"} 8.0
vllm:num_requests_waiting{engine="0"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:num_preemptions_total{engine="0"} 3.0
vllm:generation_tokens_total{engine="0"} 512.0
vllm:request_queue_time_seconds_sum{engine="0"} 4.5
vllm:request_queue_time_seconds_count{engine="0"} 9.0
"""


def test_metrics_of_sglang() -> None:
    stats = engine_stats(parse_metrics(SGLANG))
    assert stats is not None
    assert (stats.running, stats.queued, stats.retracted) == (60, 12, 7)
    assert stats.accept_length == 3.214
    assert (stats.kv_use, stats.state_use) == (0.81239, 0.97)
    assert (stats.queue_s, stats.queued_ever) == (120.5, 40)
    assert stats.progress == {
        "sglang:realtime_tokens_total": 1000.0,
        "sglang:generation_tokens_total": 850.0,
    }
    assert stats.row() == {
        "queued": 12,
        "accept_length": 3.21,
        "kv_use": 0.812,
        "state_use": 0.97,
        "retractions": 7,
    }


def test_metrics_of_vllm() -> None:
    stats = engine_stats(parse_metrics(VLLM))
    assert stats is not None
    assert (stats.running, stats.queued, stats.retracted) == (8, 2, 3)
    assert (stats.kv_use, stats.queue_s, stats.queued_ever) == (0.25, 4.5, 9)
    assert stats.progress == {"vllm:generation_tokens_total": 512.0}


def test_without_counters_there_are_no_stats() -> None:
    assert engine_stats(parse_metrics("process_cpu_seconds_total 1\n")) is None
    assert engine_stats(parse_metrics("sglang:num_running_reqs 3.0\n")) is None
    assert engine_stats(parse_metrics('{"version": "0.5.23"}')) is None
