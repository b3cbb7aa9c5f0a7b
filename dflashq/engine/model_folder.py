"""Whether a model folder is complete: config, tokenizer and every weight file."""

from __future__ import annotations

import json
from pathlib import Path

from dflashq.core.errors import ConfigError
from dflashq.core.humanize import counted

WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


def check_model(folder: Path) -> str:
    """Check config, tokenizer and every weight file that the index names; returns a summary.

    ConfigError names what is missing. Reads the index only, no weights.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"there is no model folder {folder}: put the model there or set DFLASHQ_MODEL_PATH"
        )
    missing = [] if (folder / "config.json").is_file() else ["config.json"]
    if not any((folder / name).is_file() for name in TOKENIZERS):
        missing.append("a tokenizer")
    weights = _weights(folder)
    missing += [name for name in weights if not _is_complete(folder / name)] or (
        [] if weights else ["weights"]
    )
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if missing[5:] else "")
        raise ConfigError(f"{folder} is incomplete, it lacks {shown}: download the model again")
    size = sum((folder / name).stat().st_size for name in weights)
    return f"{folder}: {counted(len(weights), 'weight file')}, {size / 2**30:,.2f} GiB"


def _is_complete(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _weights(folder: Path) -> list[str]:
    """The names of the weight files: those that the index lists, else those in the folder."""
    for index in sorted(folder.glob("*.index.json")):
        try:
            return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as exc:
            raise ConfigError(f"{index} is damaged ({exc}): download the model again") from None
    return sorted(path.name for pattern in WEIGHTS for path in folder.glob(pattern))
