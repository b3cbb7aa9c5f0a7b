"""A third stage, for tests alone: it copies what generate committed, line by line.

All that it costs: this folder, and the two registrations (its spec here, its builder in `worker`).
"""

from __future__ import annotations

from dflashq.core import stage_spec
from dflashq.core.stage_spec import StageSpec

COPY = StageSpec(
    name="copy",
    task="dflashq-test.copy",
    queue="copy",
    folder="copies",
    suffix=".jsonl",
    upstream="generate",
    needs_engine=False,
)
stage_spec.register(COPY)
