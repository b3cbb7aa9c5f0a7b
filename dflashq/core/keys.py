"""Every name on Redis and S3, in one place.

Redis keys of a run carry the hash tag `{run}`, so one script touches one slot.
S3 keys are relative to the bucket's prefix.
"""

from __future__ import annotations

import re

from dflashq.core.stage_spec import GENERATE, ROWS, StageSpec

NAMESPACE = "dflashq"
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
BATCH_NAME = re.compile(r"batch-(\d{6,})(?:\.r(\d+))?")

RUNS = f"{NAMESPACE}:runs"
SWEEP_LOCK = f"{NAMESPACE}:sweep-lock"
PROGRESS_LOCK = f"{NAMESPACE}:progress-lock"
WORKERS = f"{NAMESPACE}:workers"
NOTICES_LOCK = f"{NAMESPACE}:notices-lock"
MONITOR_LEAD = f"{NAMESPACE}:monitor:lead"
MONITOR_FLEET = f"{NAMESPACE}:monitor:fleet"
MONITOR_EVENTS = f"{NAMESPACE}:monitor:events"


def valid_run_name(name: str) -> bool:
    """True for a name that is safe as an S3 prefix and as a Redis hash tag."""
    return RUN_NAME.fullmatch(name) is not None


def batch_name(number: int, revision: int = 0) -> str:
    """`batch-000017`, or `batch-000017.r1` for its first revision."""
    return f"batch-{number:06d}" + (f".r{revision}" if revision else "")


def parse_batch(name: str) -> tuple[int, int]:
    """(number, revision) of a batch name; ValueError when it is none."""
    match = BATCH_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no batch name (batch-000017 or batch-000017.r1)")
    return int(match[1]), int(match[2] or 0)


def queue_name(model: str) -> str:
    """The Celery queue of a model; `model` is the short name of a profile."""
    return "generate." + re.sub(r"[^a-z0-9.-]+", "-", model.lower()).strip("-")


def redis_run(run: str, part: str) -> str:
    """A Redis key of a run: `dflashq:{run}:part`."""
    return f"{NAMESPACE}:{{{run}}}:{part}"


def ledger_key(run: str, part: str, stage: str = GENERATE.name) -> str:
    """A key of the ledger: `dflashq:{run}:part` of generate, `dflashq:{run}:stage:part` else."""
    return redis_run(run, part if stage == GENERATE.name else f"{stage}:{part}")


def stage_runs(stage: str) -> str:
    """The hash of the runs that a stage works on, each with the queue of its hints."""
    return RUNS if stage == GENERATE.name else f"{RUNS}:{stage}"


def finalize_lock(run: str) -> str:
    """Held by the one worker that writes a run's manifest."""
    return redis_run(run, "closing")


def notice(about: str, name: str) -> str:
    """Held while a person is told of something, and kept once told; `about` a run or a worker."""
    return redis_run(about, f"notice:{name}")


def run_prefix(run: str) -> str:
    return f"runs/{run}/"


def run_json(run: str) -> str:
    return f"runs/{run}/run.json"


def state_json(run: str) -> str:
    """Mirror of pause and cancel, so that a lost Redis does not forget them."""
    return f"runs/{run}/state.json"


def prompts_object(run: str, batch: str, sha256: str) -> str:
    """Prompt objects are content-addressed: two enqueues never overwrite each other."""
    return f"runs/{run}/prompts/{batch}.{sha256[:16]}.jsonl.zst"


def stage_prefix(run: str, spec: StageSpec) -> str:
    """Where the objects of a stage lie."""
    return f"runs/{run}/{spec.folder}/"


def stage_object(run: str, spec: StageSpec, batch: str) -> str:
    """The commit point of a batch in a stage: one deterministic key, put only if absent."""
    return f"{stage_prefix(run, spec)}{batch}{spec.suffix}"


def completions_prefix(run: str) -> str:
    return stage_prefix(run, GENERATE)


def completions_object(run: str, batch: str) -> str:
    """The commit point of a batch."""
    return stage_object(run, GENERATE, batch)


def rejected_object(run: str, batch: str, sha256: str) -> str:
    return f"runs/{run}/rejected/{batch}.{sha256[:16]}.jsonl.zst"


def rows_prefix(run: str) -> str:
    return stage_prefix(run, ROWS)


def rows_object(run: str, batch: str) -> str:
    """The training rows of a committed batch."""
    return stage_object(run, ROWS, batch)


def revision_json(run: str, batch: str) -> str:
    """The record of a revision: which prompt object its batch reads."""
    return f"runs/{run}/revisions/{batch}.json"


def revisions_prefix(run: str) -> str:
    return f"runs/{run}/revisions/"


def engine_object(run: str, engine_id: str) -> str:
    return f"runs/{run}/engines/{engine_id}.json"


def truth_json(run: str) -> str:
    """What all engines of a run must share, as its first engine had it."""
    return f"runs/{run}/truth.json"


def quarantine_object(run: str, batch: str, sha256: str) -> str:
    """Where reconcile puts a commit object that is not the run's."""
    return f"runs/{run}/quarantine/{batch}.{sha256[:16]}.jsonl.zst"


def manifest_json(run: str) -> str:
    """The record of a finished run: every committed object with its sha256 and counts."""
    return f"runs/{run}/manifest.json"


def progress_json(run: str) -> str:
    """How a run fares, written every minute: for whoever cannot reach Redis."""
    return f"runs/{run}/progress.json"
