"""Is a model folder whole? Config, tokenizer and every weight file."""

from __future__ import annotations

import json
from pathlib import Path

from dflashq.core.errors import ConfigError
from dflashq.core.humanize import counted

WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


def check_model(folder: Path) -> str:
    """Config, tokenizer and every weight file that the index names; ConfigError says what lacks."""
    if not folder.is_dir():
        raise ConfigError(
            f"there is no model folder {folder}: put the model there or set DFLASHQ_MODEL_PATH"
        )
    lacks = [] if (folder / "config.json").is_file() else ["config.json"]
    if not any((folder / name).is_file() for name in TOKENIZERS):
        lacks.append("a tokenizer")
    weights = _weights(folder)
    lacks += [name for name in weights if not _whole(folder / name)] or (
        [] if weights else ["weights"]
    )
    if lacks:
        shown = ", ".join(lacks[:5]) + (f" and {len(lacks) - 5} more" if len(lacks) > 5 else "")
        raise ConfigError(f"{folder} is incomplete, it lacks {shown}: download the model again")
    size = sum((folder / name).stat().st_size for name in weights)
    return f"{folder}: {counted(len(weights), 'weight file')}, {size / 2**30:,.2f} GiB"


def _whole(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _weights(folder: Path) -> list[str]:
    """The weight files that must be there: those of the index, else those that are."""
    for index in sorted(folder.glob("*.index.json")):
        try:
            return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as exc:
            raise ConfigError(f"{index} is damaged ({exc}): download the model again") from None
    return sorted(path.name for pattern in WEIGHTS for path in folder.glob(pattern))
