"""The report of a server without its keys and passwords."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "(hidden)"
_NAMES = re.compile(r"api_key|password|secret|credential|hf_token|access_token")
_FLAGS = re.compile(r"(--(?:admin-)?api-key|--[a-z-]*(?:password|secret|credential))([= ]+)\S+")


def without_secrets(value: Any) -> Any:
    """A copy of `value` with keys and passwords hidden, at any depth and in launch commands."""
    if isinstance(value, dict):
        return {
            name: HIDDEN if inner and _NAMES.search(str(name)) else without_secrets(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(inner) for inner in value]
    if isinstance(value, str):
        return _FLAGS.sub(rf"\1\2{HIDDEN}", value)
    return value
