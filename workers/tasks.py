"""The tasks: one line each, the work is in `dflashq.stages`."""

from __future__ import annotations

from dflashq.core.stage_spec import GENERATE, ROWS
from workers import runtime, stage_worker
from workers.app import app


@app.task(name=GENERATE.task)  # type: ignore[untyped-decorator]
def generate(run: str, batch: str) -> str:
    """Work on a hinted batch until it is committed or handed back."""
    return runtime.required().generator.process_hint(run, batch)


@app.task(name=ROWS.task)  # type: ignore[untyped-decorator]
def tokenize(run: str, batch: str) -> str:
    """Write the training rows of a committed batch, unless they are there."""
    return stage_worker.required().process_hint(run, batch)
