"""The JSON and text shapes of SGLang 0.5.23's responses."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

VERSION = "0.5.23"
GENERATE_FIELDS = frozenset(
    [
        "text",
        "input_ids",
        "rid",
        "sampling_params",
        "stream",
        "return_logprob",
        "logprob_start_len",
        "top_logprobs_num",
        "return_prompt_token_ids",
        "return_hidden_states",
        "priority",
        "require_reasoning",
        "max_thinking_tokens",
        "extra_key",
        "cache_salt",
        "custom_logit_processor",
        "return_text_in_logprobs",
        "log_metrics",
    ]
)
SAMPLING_FIELDS = frozenset(
    [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "max_new_tokens",
        "min_new_tokens",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "no_stop_trim",
        "stop",
        "stop_token_ids",
        "stop_regex",
        "ignore_eos",
        "n",
        "sampling_seed",
        "json_schema",
        "regex",
        "ebnf",
        "structural_tag",
        "logit_bias",
        "custom_params",
        "stream_interval",
    ]
)
SPECULATION = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}


def server_info(
    *, model: str, context_length: int, slots: int, speculation: str | None, started: float
) -> dict[str, Any]:
    """`/server_info`: the fields that a profile may check, named as the real ones."""
    spec = {k: v if speculation else None for k, v in SPECULATION.items()}
    spec["speculative_algorithm"] = speculation
    running = {"effective_max_running_requests_per_dp": slots}
    memory = {"token_capacity": slots * context_length}
    arguments = {
        "model_path": model,
        "tokenizer_path": model,
        "served_model_name": model,
        "revision": None,
        "context_length": context_length,
        "max_running_requests": slots,
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "quantization": None,
        "skip_tokenizer_init": False,
        "reasoning_parser": None,
        "tool_call_parser": None,
        "schedule_policy": "fcfs",
        "disable_radix_cache": True,
        "enable_metrics": True,
        "random_seed": 0,
        "dp_size": 1,
        "tp_size": 1,
        **spec,
    }
    internal = {**arguments, **running, "memory_usage": memory, "last_gen_throughput": 0.0}
    return {
        **arguments,
        "status": "ready",
        "max_total_num_tokens": slots * context_length,
        "max_req_input_len": context_length - 6,
        "startup_time": started,
        "launch_command": "python -m " + __package__,
        "internal_states": [internal],
        "version": VERSION,
    }


def model_info(model: str) -> dict[str, Any]:
    """`/model_info`."""
    return {
        "model_path": model,
        "served_model_name": model,
        "tokenizer_path": model,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "reasoning_parser": None,
        "tool_call_parser": None,
    }


def generated(
    *,
    rid: str,
    ids: list[int],
    finish: dict[str, Any],
    prompt_tokens: int,
    accept_length: float | None,
    received: float,
    latency: float,
    queued: float,
) -> dict[str, Any]:
    """The body of a `/generate` response; times in seconds, `received` since the epoch."""
    count = len(ids)
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": finish,
        "prompt_tokens": prompt_tokens,
        "weight_version": "default",
        "num_retractions": 0,
        "queue_time": queued,
        "reasoning_tokens": 0,
        "completion_tokens": count,
        "cached_tokens": 0,
        "weight_versions": [{"version": "default", "start": 0, "end": count}],
        "cached_tokens_details": None,
        "dp_rank": None,
        "e2e_latency": latency,
        "request_received_ts": received,
        "request_finished_ts": received + latency,
        "decode_throughput": count / latency if latency else 0.0,
        "response_sent_to_client_ts": time.time(),
    }
    if accept_length is not None:
        meta["spec_accept_length"] = accept_length
        meta["spec_accept_rate"] = (accept_length - 1) / 3
        meta["spec_verify_ct"] = round(count / accept_length)
    return {"text": f"({count} emulated ids)", "output_ids": ids, "meta_info": meta}


def piece(rid: str, ids: list[int], made: int) -> dict[str, Any]:
    """One piece of a stream that is not the last."""
    meta = {"id": rid, "finish_reason": None, "completion_tokens": made}
    return {"text": f"({len(ids)} emulated ids)", "output_ids": ids, "meta_info": meta}


def abort_finish(message: str = "Aborted") -> dict[str, Any]:
    """The finish reason of a running request that was aborted: HTTP 200 all the same."""
    return {"type": "abort", "message": message, "status_code": None, "err_type": None}


def too_long(prompt: int, asked: int, context: int) -> str | None:
    """The refusal of a request that does not fit the context; None when it fits."""
    if prompt >= context:
        return (
            f"The input ({prompt} tokens) is longer than the model's context length "
            f"({context} tokens)."
        )
    if prompt + asked > context:
        return (
            f"Requested token count exceeds the model's maximum context length of {context} "
            f"tokens. You requested a total of {prompt + asked} tokens: {prompt} tokens from the "
            f"input messages and {asked} tokens for the completion. Please reduce the number of "
            "tokens in the input messages or the completion to fit within the limit."
        )
    return None


def metrics_text(model: str, gauges: Mapping[str, float], counters: Mapping[str, float]) -> str:
    """`/metrics` in the Prometheus text format, with the labels of a single-GPU server."""
    scheduler = (
        f'engine_type="unified",model_name="{model}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    )
    tokenizer = f'engine_type="unified",is_streaming="false",model_name="{model}"'
    lines = []
    for name, value in gauges.items():
        lines += [f"# TYPE sglang:{name} gauge", f"sglang:{name}{{{scheduler}}} {float(value)}"]
    for name, value in counters.items():
        base, _, mode = name.partition("|")
        labels = (
            scheduler.replace(",model_name", f',mode="{mode}",model_name') if mode else tokenizer
        )
        lines += [f"# TYPE sglang:{base} counter", f"sglang:{base}{{{labels}}} {float(value)}"]
    return "\n".join(lines) + "\n"
