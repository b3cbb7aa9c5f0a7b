"""The Celery application of a worker that knows the copy stage."""

from __future__ import annotations

from dflashq.core.stage_spec import register
from dflashq.stages.registry import BUILDERS
from tests.support.copy_stage.stage import COPY, CopyStage
from workers import stage_worker
from workers.app import app

register(COPY)
BUILDERS[COPY.name] = CopyStage


@app.task(name=COPY.task)  # type: ignore[untyped-decorator]
def copy(run: str, batch: str) -> str:
    """Copy the completions of a batch."""
    return stage_worker.required().process_hint(run, batch)
