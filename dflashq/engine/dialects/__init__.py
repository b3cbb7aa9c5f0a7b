"""The engine APIs that a profile may name, by the name that `[launch] dialect` uses."""

from __future__ import annotations

from dflashq.engine.dialects.base import Dialect
from dflashq.engine.dialects.openai import OpenAIChat
from dflashq.engine.dialects.sglang import SGLang

DIALECTS: dict[str, Dialect] = {"sglang": SGLang(), "openai": OpenAIChat()}
