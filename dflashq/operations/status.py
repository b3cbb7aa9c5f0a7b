"""Insights: how a run and its workers fare, from what the ledger says. Pure functions.

One place for the command line and for a web page; nothing here reads a clock or a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dflashq.core.progress import in_words, left_s
from dflashq.core.wording import counted
from dflashq.ledger.records import RunStatus

SILENT_S = 30
_REJECTED = "rejected_"


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker as it last announced itself; `batches` as run/batch, `silent_s` since then.

    `queue` is the one that it serves, `boot` tells this start of it from any other, `sick` says why
    its engine answers with errors only (empty while it is well), `refuses` names the runs that its
    engine may not answer for.
    """

    name: str
    engine: str
    profile: str
    gpu: str
    in_flight: int
    limit: int
    tokens_per_s: float
    output_tokens: int
    silent_s: int
    closed: list[str] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)
    queue: str = ""
    boot: str = ""
    sick: str = ""
    refuses: list[str] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Heard of lately: only such a worker counts for speed and estimates."""
        return self.silent_s <= SILENT_S

    def works_on(self, run: str) -> bool:
        """Whether it holds a batch of this run."""
        return any(batch.rpartition("/")[0] == run for batch in self.batches)


@dataclass(frozen=True, slots=True)
class RunView:
    """One run in numbers. `total` counts revisions too; `waiting` batches are held back.

    `settled` prompts have their verdict on S3; `rejects` maps reason to prompts, most first.
    `working` counts its live workers; `age_s` since it was enqueued;
    `left_s` is None when it cannot be told.
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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def worker_views(workers: Mapping[str, Mapping[str, Any]]) -> list[WorkerView]:
    """The workers by name; fields that an older worker does not announce are empty."""
    return [
        WorkerView(
            name=name,
            engine=str(row.get("engine", "?")),
            profile=str(row.get("profile", "")),
            gpu=str(row.get("gpu", "")),
            in_flight=int(row.get("in_flight", 0)),
            limit=int(row.get("limit", 0)),
            tokens_per_s=float(row.get("tokens_per_s", 0.0)),
            output_tokens=int(row.get("output_tokens", 0)),
            silent_s=int(row["silent_s"]),
            closed=list(row.get("closed", ())),
            batches=list(row.get("batches", ())),
            queue=str(row.get("queue", "")),
            boot=str(row.get("boot", "")),
            sick=str(row.get("sick", "")),
            refuses=list(row.get("refuses", ())),
        )
        for name, row in sorted(workers.items())
    ]


def run_view(
    status: RunStatus,
    workers: list[WorkerView],
    measured_per_s: float | None = None,
    estimated_left_s: float | None = None,
) -> RunView:
    """A run in numbers and one sentence.

    `measured_per_s` is the run's tokens per second where the caller measured them over a while;
    otherwise what its workers announced last is added up. A worker with several runs counts
    wholly for each. `estimated_left_s` is the caller's better estimate of what is left.
    """
    mine = [w for w in workers if w.alive and w.works_on(status.name)]
    announced = sum(w.tokens_per_s for w in mine)
    per_s = announced if measured_per_s is None else measured_per_s
    counters = status.counters
    rejects = _rejects(counters)
    known = status.pending + len(status.leased) + status.done + len(status.dead)
    settled = counters.get("prompts", 0)
    tokens = counters.get("output_tokens", 0)
    left = left_s(settled, status.prompts, tokens, per_s)
    view = RunView(
        name=status.name,
        state=status.state,
        reason=status.reason,
        finished=status.finished,
        queue=status.queue,
        fingerprint=status.fingerprint,
        total=max(known, status.batches),
        done=status.done,
        leased=len(status.leased),
        pending=status.pending,
        waiting=max(0, status.batches - known),
        dead=len(status.dead),
        prompts=status.prompts,
        settled=settled,
        accepted=counters.get("accepted", 0),
        rejected=sum(rejects.values()),
        rejects=rejects,
        output_tokens=tokens,
        kept_bytes=status.kept_bytes,
        age_s=max(0.0, (status.now_ms - status.created_ms) / 1000),
        working=len(mine),
        tokens_per_s=round(per_s, 1),
        left_s=left if estimated_left_s is None else estimated_left_s,
        waits_for=status.waits_for,
    )
    return _with_sentence(view, sum(1 for w in workers if w.alive))


def _rejects(counters: Mapping[str, int]) -> dict[str, int]:
    """Rejected prompts by reason, most first; a revision may have brought a count back to 0."""
    found = {k.removeprefix(_REJECTED): n for k, n in counters.items() if k.startswith(_REJECTED)}
    return {k: n for k, n in sorted(found.items(), key=lambda kn: (-kn[1], kn[0])) if n}


def _with_sentence(view: RunView, alive: int) -> RunView:
    row = asdict(view)
    row["sentence"] = "; ".join(part for part in (_how_it_goes(view, alive), _dead(view)) if part)
    return RunView(**row)


def _how_it_goes(view: RunView, alive: int) -> str:
    done = f"{view.done:,} of {view.total:,} batches done"
    why = f" ({view.reason})" if view.reason else ""
    if view.state == "cancelled":
        return f"{done}, then cancelled{why}: what is done stays on S3"
    if view.finished:
        said = f"{done}: {view.accepted:,} accepted, {view.rejected:,} rejected"
        return said if view.dead else f"{said}; proof: dflashq verify {view.name}"
    if view.state == "paused":
        return f"{done}, paused{why}: dflashq resume {view.name}"
    return f"{done}, {_at_work(view, alive)}"


def _at_work(view: RunView, alive: int) -> str:
    if not alive:
        return "no worker is up: start one with celery -A workers worker"
    if not view.working:
        if alive == 1:
            return "the one worker that is up does not work on it yet"
        return f"none of the {alive:,} workers that are up works on it yet"
    if view.waits_for:
        return (
            f"the canary ({view.waits_for}) is at work and {view.pending:,} others wait "
            "until it has passed"
        )
    speed = f"{counted(view.working, 'worker')} at {view.tokens_per_s:,.0f} tokens/s"
    left = "" if view.left_s is None else f", about {in_words(view.left_s)} left"
    return speed + left


def _dead(view: RunView) -> str:
    if not view.dead or view.state == "cancelled":
        return ""
    verb = "is" if view.dead == 1 else "are"
    return f"{counted(view.dead, 'batch')} {verb} dead: dflashq backfill {view.name}"
