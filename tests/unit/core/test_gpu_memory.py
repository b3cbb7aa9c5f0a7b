"""The arithmetic of GPU memory, against the published sizes of Qwen3.6-27B."""

from __future__ import annotations

from typing import Any

import pytest

from dflashq.core.estimates.gpu_memory import Architecture, MemoryFlags, fits, pool_mb, request_mb

QWEN = {
    "text_config": {
        "num_hidden_layers": 64,
        "full_attention_interval": 4,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_size": 5120,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
}
MTP: dict[str, Any] = {"--speculative-num-draft-tokens": 4}
NO_RADIX: dict[str, Any] = MTP | {"--disable-radix-cache": None}
REPLAY: dict[str, Any] = NO_RADIX | {"--enable-linear-replayssm-spec": None}
FP8_KV = {"--kv-cache-dtype": "fp8_e4m3"}
# Pools in MB: 96 GB with BF16 and with FP8 weights, and a B200 with BF16.
BF16, FP8, B200 = 25_000, 52_000, 97_000
MODEL = Architecture.of(QWEN)


def test_sizes_of_a_state_and_of_a_token() -> None:
    assert MODEL.state_mb() == pytest.approx(153.9, abs=0.1)
    assert MODEL.state_mb("bfloat16") == pytest.approx(78.4, abs=0.1)
    assert MODEL.kv_kb() == pytest.approx(65.5, abs=0.1)
    assert MODEL.kv_kb("fp8_e4m3") == pytest.approx(32.8, abs=0.1)


@pytest.mark.parametrize(
    ("flags", "states_mb", "kv_mb", "bf16", "fp8"),
    [
        (MTP, 1385, 197, 15, 32),
        (NO_RADIX, 770, 197, 25, 53),
        (REPLAY, 154, 197, 71, 148),
        (REPLAY | FP8_KV, 154, 98, 99, 206),
        ({"--disable-radix-cache": None} | FP8_KV, 154, 98, 99, 206),
    ],
)
def test_the_table_of_running_requests(
    flags: dict[str, Any], states_mb: int, kv_mb: int, bf16: int, fp8: int
) -> None:
    launch = MemoryFlags.of(flags)
    assert request_mb(MODEL, launch) == pytest.approx(states_mb + kv_mb, abs=2)
    assert fits(BF16, MODEL, launch) == bf16
    assert fits(FP8, MODEL, launch) == fp8


def test_a_larger_card_and_longer_answers() -> None:
    launch = MemoryFlags.of(REPLAY)
    assert fits(B200, MODEL, launch) == 276
    assert [fits(p, MODEL, launch, 10_000) for p in (BF16, FP8, B200)] == [30, 64, 119]


def test_the_pool_is_what_the_weights_leave() -> None:
    launch = MemoryFlags.of(REPLAY | {"--mem-fraction-static": 0.85})
    assert pool_mb(96_000, 54_000, launch) == pytest.approx(BF16)
    assert pool_mb(96_000, 28_500, launch) == pytest.approx(FP8, rel=0.03)
    assert pool_mb(180_000, 54_000, launch) == pytest.approx(B200, rel=0.01)
    assert fits(pool_mb(48_000, 54_000, launch), MODEL, launch) == 0


@pytest.mark.parametrize(
    ("strategy", "states"), [("no_buffer", 3), ("extra_buffer_lazy", 4), ("extra_buffer", 5)]
)
def test_the_prefix_cache_costs_states(strategy: str, states: int) -> None:
    assert MemoryFlags.of({"--mamba-radix-cache-strategy": strategy}).states == states


def test_replay_forces_full_precision() -> None:
    launch = MemoryFlags.of(REPLAY | {"--mamba-ssm-dtype": "bfloat16"})
    assert (launch.ssm_dtype, launch.scratch) == ("float32", 0)


def test_a_model_of_full_attention_has_no_states() -> None:
    plain = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    model = Architecture.of(plain)
    assert model.state_mb() == 0
    assert model.kv_kb() == pytest.approx(2 * 2 * 64 * 2 / 1e3)


def test_layer_types_win_over_the_interval() -> None:
    listed = QWEN["text_config"] | {
        "layer_types": ["linear_attention", "full_attention"] * 32,
    }
    assert Architecture.of(listed).kv_numbers_per_token == 2 * MODEL.kv_numbers_per_token
