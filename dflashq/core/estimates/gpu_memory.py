"""How many requests a GPU's memory holds: weights, linear-attention states, KV cache. Pure.

Sizes in MB of 10^6 bytes, as the calculators of the engine have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MB = 1e6
# For CUDA context, graphs, activations and fragmentation; a high estimate.
RESERVE_MB = 2_600.0
LIVE_TOKENS = 3_000
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2}
# Copies of a request's state by the strategy of the prefix cache; without that cache it is one.
_COPIES = {"no_buffer": 3, "extra_buffer_lazy": 4, "extra_buffer": 5, "auto": 5}


@dataclass(frozen=True, slots=True)
class Architecture:
    """How many numbers a model stores for a request.

    `state_numbers` and `conv_numbers`: for one linear-attention state, over all layers;
    `kv_numbers_per_token`: for one token of KV cache, over all layers.
    """

    state_numbers: int
    conv_numbers: int
    kv_numbers_per_token: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Architecture:
        """From a model's `config.json`. A model without linear attention has no states."""
        text = config.get("text_config") or config
        layers = int(text["num_hidden_layers"])
        linear = _linear_layers(text, layers)
        heads = int(text.get("num_key_value_heads") or text["num_attention_heads"])
        width = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
        kv = (layers - linear) * 2 * heads * int(width)
        if not linear:
            return cls(0, 0, kv)
        keys = int(text["linear_num_key_heads"]) * int(text["linear_key_head_dim"])
        values = int(text["linear_num_value_heads"]) * int(text["linear_value_head_dim"])
        state = values * int(text["linear_key_head_dim"])
        conv = (2 * keys + values) * (int(text["linear_conv_kernel_dim"]) - 1)
        return cls(linear * state, linear * conv, kv)

    def state_mb(self, dtype: str = "float32") -> float:
        """MB of one state; its short convolution always has 16 bits a number."""
        return (self.state_numbers * _BYTES[dtype] + self.conv_numbers * 2) / MB

    def kv_kb(self, dtype: str = "auto") -> float:
        """KB of one token of KV cache."""
        return self.kv_numbers_per_token * (1 if dtype.startswith("fp8") else _BYTES[dtype]) / 1e3


@dataclass(frozen=True, slots=True)
class MemoryFlags:
    """The launch flags that decide how memory is used.

    `states`: copies of a request's state; `scratch`: states for draft tokens; `fraction`: share of
    the GPU for weights and pools; `running`: the limit of requests, None when the engine chooses.
    """

    states: int
    scratch: int
    ssm_dtype: str
    kv_dtype: str
    fraction: float
    running: int | None

    @classmethod
    def of(cls, flags: Mapping[str, Any]) -> MemoryFlags:
        """From flags by name; a switch such as `--disable-radix-cache` has the value None."""
        replay = "--enable-linear-replayssm-spec" in flags
        drafts = int(flags.get("--speculative-num-draft-tokens") or 0)
        strategy = str(flags.get("--mamba-radix-cache-strategy") or "auto")
        running = flags.get("--max-running-requests")
        return cls(
            states=1 if "--disable-radix-cache" in flags else _COPIES[strategy],
            scratch=0 if replay else drafts,
            ssm_dtype="float32" if replay else str(flags.get("--mamba-ssm-dtype") or "float32"),
            kv_dtype=str(flags.get("--kv-cache-dtype") or "auto"),
            fraction=float(flags.get("--mem-fraction-static") or 0.85),
            running=None if running is None else int(running),
        )


def request_mb(model: Architecture, launch: MemoryFlags, live_tokens: int = LIVE_TOKENS) -> float:
    """MB of one running request that holds `live_tokens` tokens of KV cache."""
    states = (launch.states + launch.scratch) * model.state_mb(launch.ssm_dtype)
    return states + live_tokens * model.kv_kb(launch.kv_dtype) / 1e3


def pool_mb(gpu_mb: float, weights_mb: float, launch: MemoryFlags) -> float:
    """MB that weights and reserve leave for requests; negative when the weights do not fit."""
    return gpu_mb * launch.fraction - weights_mb - RESERVE_MB


def fits(
    pool: float, model: Architecture, launch: MemoryFlags, live_tokens: int = LIVE_TOKENS
) -> int:
    """How many requests a pool of `pool` MB holds when states and KV cache share it ideally."""
    return max(0, int(pool / request_mb(model, launch, live_tokens)))


def _linear_layers(text: Mapping[str, Any], layers: int) -> int:
    kinds = text.get("layer_types")
    if kinds:
        return sum(kind == "linear_attention" for kind in kinds)
    every = text.get("full_attention_interval")
    return layers - layers // int(every) if every and "linear_num_value_heads" in text else 0
