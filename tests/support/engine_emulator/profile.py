"""A dflashq engine profile that launches the emulated engine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.support.engine_emulator.launch import MODULE, ROOT, arguments
from tests.support.engine_emulator.shapes import VERSION
from tests.support.wait import WAIT_S


def emulated_profile(
    tmp_path: Path,
    *,
    model_dir: Path,
    name: str = "emulated",
    thinking: bool = True,
    expect: dict[str, object] | None = None,
    sampling: dict[str, object] | None = None,
    concurrency: dict[str, object] | None = None,
    launch: dict[str, object] | None = None,
    **options: Any,
) -> Path:
    """Write `tmp_path/NAME.toml`, of kind "command", and return it.

    `options` are those of the emulator's command line. The end id, `</think>`, the range of
    ordinary ids and the vocabulary size come from the tokenizer of `model_dir` unless they are
    given. `expect` takes the place of the default expectations, the other tables add to theirs.
    """
    defaults = {"slots": 8, "context_length": 32768, "speculation": "EAGLE"}
    options = defaults | token_options(model_dir) | {"tokenizer": model_dir} | options
    options["model"] = name
    argv = [
        sys.executable,
        "-m",
        MODULE,
        "--port",
        "{port}",
        "--nccl-port",
    ]
    argv += ["{nccl_port}", *arguments(**options)]
    usual: dict[str, object] = {
        "version": VERSION,
        "model_path": name,
        "context_length": options["context_length"],
        "max_running_requests": options["slots"],
    }
    if options["speculation"] != "none":
        usual["speculative_algorithm"] = options["speculation"]
    tables: dict[str, dict[str, object]] = {
        "model": {
            "id": name,
            "source": f"emulated/{name}",
            "revision": "emulated",
            "path": str(model_dir),
            "thinking": thinking,
            "context_length": options["context_length"],
        },
        "launch": {
            "kind": "command",
            "python": sys.executable,
            "argv": argv,
            "start_timeout_s": WAIT_S,
            "stop_grace_s": 2.0,
            **(launch or {}),
        },
        "launch.env": {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        "expect": usual if expect is None else expect,
        "sampling": {"max_new_tokens": 2048, **(sampling or {})},
        "concurrency": concurrency or {},
    }
    path = tmp_path / f"{name}.toml"
    path.write_text("\n".join(_table(key, row) for key, row in tables.items()))
    return path


def token_options(model_dir: Path) -> dict[str, Any]:
    """Options that make the answers fit a tokenizer: its end, `</think>` and ordinary ids."""
    tokenizer = json.loads((model_dir / "tokenizer.json").read_text())
    config = json.loads((model_dir / "tokenizer_config.json").read_text())
    added = {row["content"]: row["id"] for row in tokenizer["added_tokens"]}
    vocabulary = tokenizer["model"]["vocab"]
    size = 1 + max([*vocabulary.values(), *added.values()])
    eos = config["eos_token"]
    low = min(1000, size // 2)
    high = min([20000, len(vocabulary), *(i for i in added.values() if i > low)])
    options = {
        "end_id": added[eos["content"] if isinstance(eos, dict) else eos],
        "ids": f"{low}:{high}",
        "vocab_size": size,
    }
    if "</think>" in added:
        options["think_close"] = added["</think>"]
    return options


def _table(name: str, row: dict[str, object]) -> str:
    # A JSON string, number, boolean or list of strings is written the same in TOML.
    lines = [f"{json.dumps(key)} = {_value(value)}" for key, value in row.items()]
    return "\n".join([f"[{name}]", *lines, ""])


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_value(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)
