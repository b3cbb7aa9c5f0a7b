"""The settings of a test as environment variables, for the processes that it starts."""

from __future__ import annotations

import os

from pydantic import SecretStr

from dflashq.config import Settings


def _text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(value).lower() if isinstance(value, bool) else str(value)


def variables(settings: Settings) -> dict[str, str]:
    """`DFLASHQ_*` alone, for every setting that has a value."""
    values = {name: getattr(settings, name) for name in Settings.model_fields}
    return {f"DFLASHQ_{k.upper()}": _text(v) for k, v in values.items() if v is not None}


def environment(settings: Settings) -> dict[str, str]:
    """This process's environment with every `DFLASHQ_*` variable replaced by the settings'."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith("DFLASHQ_")}
    return ours | variables(settings)
