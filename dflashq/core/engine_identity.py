"""The fields of an engine that decide what its answers are: they may not change inside a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SERVER = ("dtype", "quantization", "kv_cache_dtype", "weight_version")


def truth_of(engine: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an engine record (`runs/R/engines/<id>.json`) that a run's engines must share.

    What only decides the speed may differ: GPUs, limits, speculation.
    """
    model, server = engine["profile"]["model"], engine["server_info"]
    fields = {
        "model.source": model["source"] or model["id"],
        "model.revision": model["revision"],
        "tokenizer_sha256": engine["tokenizer_sha256"],
        "template_sha256": engine["template_sha256"],
    }
    return fields | {name: server.get(name) for name in _SERVER}


def differences(on_record: Mapping[str, Any], engine: Mapping[str, Any]) -> str:
    """`dtype: the run has 'bfloat16', this engine 'float16'; …`; empty when they agree."""
    return "; ".join(
        f"{name}: the run has {on_record.get(name)!r}, this engine {engine.get(name)!r}"
        for name in sorted({*on_record, *engine})
        if on_record.get(name) != engine.get(name)
    )
