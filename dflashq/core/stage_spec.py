"""The stages: kinds of work that a fleet does on the batches of a run, each with its names.

A stage without an upstream gets its batches from `enqueue`. Every other one is asked for by a
person or a setting, run by run; from then on it gets each batch that its upstream commits.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One kind of work on a batch; all of it is a name on the wire.

    `name` is the scope of its ledger keys and its metrics label, `task` its Celery task, `queue`
    the Celery queue of its hints ('': the queue of the run). Its objects are
    `runs/RUN/<folder>/<batch><suffix>`. `upstream` names the stage whose commits make its batches
    ready.
    """

    name: str
    task: str
    queue: str
    folder: str
    suffix: str
    upstream: str | None
    needs_engine: bool


GENERATE = StageSpec(
    name="generate",
    task="dflashq.generate",
    queue="",
    folder="completions",
    suffix=".jsonl.zst",
    upstream=None,
    needs_engine=True,
)
ROWS = StageSpec(
    name="rows",
    task="dflashq.tokenize",
    queue="rows",
    folder="rows",
    suffix=".parquet",
    upstream="generate",
    needs_engine=False,
)
STAGES = {spec.name: spec for spec in (GENERATE, ROWS)}


def register(spec: StageSpec) -> None:
    """Make a stage known to this process: swept, counted and shown like the others.

    Safe to repeat; ValueError when another stage has its name or its queue, or when its upstream
    is unknown.
    """
    for other in STAGES.values():
        if other != spec and (
            other.name == spec.name or (spec.queue and other.queue == spec.queue)
        ):
            raise ValueError(f"stage {spec.name!r} has a name or a queue of stage {other.name!r}")
    if spec.upstream is not None and spec.upstream not in STAGES:
        raise ValueError(f"stage {spec.name!r} follows {spec.upstream!r}, which is no stage")
    STAGES[spec.name] = spec


def followers() -> list[StageSpec]:
    """The stages that work on what another one has committed."""
    return [spec for spec in STAGES.values() if spec.upstream is not None]
