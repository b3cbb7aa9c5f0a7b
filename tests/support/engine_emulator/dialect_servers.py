"""Which server shapes of the emulator speak which dialect.

Whoever adds a dialect to `dflashq.engine.dialects.DIALECTS` adds the shape of its server here:
`tests/integration/engine/test_dialect_conformance.py` fails until then.
"""

from __future__ import annotations

from typing import Any

# By dialect and name of the shape: the options of the emulator's command line.
DIALECT_SERVERS: dict[str, dict[str, dict[str, Any]]] = {
    "sglang": {"native": {}},
    "openai": {"vllm": {"chat": "vllm"}, "sglang-chat": {"chat": "sglang"}},
}
