"""The tasks: one line each, the work is in `dflashq.stages`."""

from __future__ import annotations

from dflashq.core import keys
from workers import desk
from workers.app import app


@app.task(name=keys.GENERATE_TASK)  # type: ignore[untyped-decorator]
def generate(run: str, batch: str) -> str:
    """Work on a hinted batch until it is committed or handed back."""
    return desk.required().generator.handle(run, batch)
