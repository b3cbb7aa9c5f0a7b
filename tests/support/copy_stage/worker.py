"""Celery's app with the copy stage, for `celery -A tests.support.copy_stage.worker worker`."""

from __future__ import annotations

from dflashq.stages.registry import BUILDERS
from tests.support.copy_stage import COPY
from tests.support.copy_stage.stage import CopyStage
from workers import stage_worker
from workers.app import app

BUILDERS[COPY.name] = CopyStage


@app.task(name=COPY.task)
def copy(run: str, batch: str) -> str:
    """Copy a committed batch."""
    return stage_worker.required().process_hint(run, batch)
