"""A run in numbers and a sentence, from its counts in the ledger and what its workers announced.

Pure functions, for the command line and the web page alike: nothing here reads a clock or a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dflashq.core.estimates.rate import eta_s
from dflashq.ledger.models import RunStatus
from dflashq.operations.monitoring.run_condition import run_condition
from dflashq.operations.monitoring.worker_view import WorkerView

_REJECTED = "rejected_"


@dataclass(frozen=True, slots=True)
class RunView:
    """One run in numbers.

    Batches: `total` counts revisions too, `waiting` are those that the ledger does not have yet;
    `stages` has, for each stage behind generate that was asked for, its batches by state. Prompts:
    `settled` ones have their verdict on S3, `rejects` maps each reason to their number, most first.
    `working` counts the live workers that hold a batch of it. `age_s` is the time since it was
    enqueued; `left_s` is the estimate of what is left, None when there is none. `condition` is a
    value of `Condition`, `sentence` explains it.
    """

    name: str
    state: str
    reason: str
    finished: bool
    queue: str
    fingerprint: str
    total: int
    done: int
    leased: int
    pending: int
    waiting: int
    dead: int
    prompts: int
    settled: int
    accepted: int
    rejected: int
    rejects: dict[str, int]
    output_tokens: int
    kept_bytes: int
    age_s: float
    working: int
    tokens_per_s: float
    left_s: float | None
    waits_for: str = ""
    sentence: str = ""
    condition: str = ""
    stages: dict[str, dict[str, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_view(
    status: RunStatus,
    workers: list[WorkerView],
    measured_per_s: float | None = None,
    estimated_left_s: float | None = None,
) -> RunView:
    """A run in numbers and one sentence.

    `measured_per_s` is the run's speed in tokens/s where the caller has measured it over a while;
    without it, the speeds that its workers announced last are added up, where a worker with several
    runs counts wholly for each. `estimated_left_s` replaces the estimate from that speed.
    """
    working = [w for w in workers if w.alive and w.works_on(status.name)]
    announced = sum(w.tokens_per_s for w in working)
    per_s = announced if measured_per_s is None else measured_per_s
    counters = status.counters
    rejects = _rejects(counters)
    settled = counters.get("prompts", 0)
    tokens = counters.get("output_tokens", 0)
    left = eta_s(settled, status.prompts, tokens, per_s)
    left = left if estimated_left_s is None else estimated_left_s
    condition = run_condition(status, workers, per_s, left)
    return RunView(
        name=status.name,
        state=status.state,
        reason=status.reason,
        finished=status.finished,
        queue=status.queue,
        fingerprint=status.fingerprint,
        total=max(status.known, status.batches),
        done=status.done,
        leased=len(status.leased),
        pending=status.pending,
        waiting=max(0, status.batches - status.known),
        dead=len(status.dead),
        prompts=status.prompts,
        settled=settled,
        accepted=counters.get("accepted", 0),
        rejected=sum(rejects.values()),
        rejects=rejects,
        output_tokens=tokens,
        kept_bytes=status.kept_bytes,
        age_s=max(0.0, (status.now_ms - status.created_ms) / 1000),
        working=len(working),
        tokens_per_s=round(per_s, 1),
        left_s=left,
        waits_for=status.waits_for,
        sentence=condition.sentence,
        condition=condition.condition.value,
        stages={name: stage.counts() for name, stage in status.stages.items()},
    )


def _rejects(counters: Mapping[str, int]) -> dict[str, int]:
    """Rejected prompts by reason, most first; a revision may have brought a count back to 0."""
    counts = {k.removeprefix(_REJECTED): n for k, n in counters.items() if k.startswith(_REJECTED)}
    return {k: n for k, n in sorted(counts.items(), key=lambda kn: (-kn[1], kn[0])) if n}
