"""The condition of a run: what moves it or keeps it, with a sentence that says how it goes on.

Pure functions of the counts in the ledger and of what the workers announced. Every run is in one
condition, so none stands still unexplained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dflashq.core.estimates.rate import in_words
from dflashq.core.humanize import counted
from dflashq.core.quality_guard import dead_canary, lost_canary
from dflashq.core.states import BatchState, RunState
from dflashq.ledger.models import RunStatus
from dflashq.operations.monitoring.worker_view import WorkerView

SHOWN = 3
START = "start one with celery -A workers worker"


class Condition(StrEnum):
    """What keeps a run or moves it. The values are part of the JSON."""

    CANCELLED = "cancelled"
    FINISHED = "finished"
    PAUSED = "paused"
    ENQUEUE_UNFINISHED = "enqueue_unfinished"
    CANARY_DEAD = "canary_dead"
    CANARY_LOST = "canary_lost"
    CANARY_UNJUDGED = "canary_unjudged"
    CANARY_PENDING = "canary_pending"
    CANARY_AT_WORK = "canary_at_work"
    REDIS_REFUSES = "redis_refuses"
    NO_WORKER = "no_worker"
    NOT_SERVED = "not_served"
    REFUSED = "refused"
    HOLDER_SILENT = "holder_silent"
    ENGINES_STARTING = "engines_starting"
    ENGINES_SICK = "engines_sick"
    GATES_CLOSED = "gates_closed"
    ENGINES_DOWN = "engines_down"
    PENDING = "pending"
    AT_WORK = "at_work"

    @property
    def needs_attention(self) -> bool:
        """Nothing moves, and a person may have to do what the sentence says."""
        return self not in _MOVES_BY_ITSELF


_MOVES_BY_ITSELF = {
    Condition.CANCELLED,
    Condition.FINISHED,
    Condition.CANARY_UNJUDGED,
    Condition.CANARY_PENDING,
    Condition.CANARY_AT_WORK,
    Condition.ENGINES_STARTING,
    Condition.PENDING,
    Condition.AT_WORK,
}
# Where workers cannot go on for several of these reasons, the run is in the first of them.
_REMEDIES = {
    Condition.ENGINES_STARTING: "a start takes minutes, then the work begins",
    Condition.ENGINES_SICK: (
        "a worker tries its engine again by itself, and restarts one of its own; if this stays, "
        "run dflashq doctor on that host"
    ),
    Condition.GATES_CLOSED: "mend what is named there, or start another worker",
    Condition.ENGINES_DOWN: (
        "a worker restarts its engine by itself; if this stays, read the worker's log"
    ),
}


@dataclass(frozen=True, slots=True)
class RunCondition:
    """A condition, and the clause (without a full stop) that explains it."""

    condition: Condition
    sentence: str


def run_condition(
    status: RunStatus,
    workers: Sequence[WorkerView],
    tokens_per_s: float = 0.0,
    left_s: float | None = None,
) -> RunCondition:
    """The condition of a run.

    Its sentence quotes the speed `tokens_per_s` and the estimate `left_s` while the run is at work.
    """
    done = f"{status.done:,} of {max(status.known, status.batches):,} batches done"
    ended = _ended(status)
    if ended is not None:
        return RunCondition(ended.condition, f"{done}{ended.sentence}")
    if status.refusal:
        waits = "workers wait for it, and look silent while they cannot announce themselves"
        return RunCondition(
            Condition.REDIS_REFUSES, f"{done}, Redis refuses writes ({status.refusal}): {waits}"
        )
    alive = [worker for worker in workers if worker.alive]
    left = "" if left_s is None else f", about {in_words(left_s)} left"
    condition = _standstill(status) or _workers(
        status, alive, f"{tokens_per_s:,.0f} tokens/s{left}"
    )
    parts = (
        f"{done}, {condition.sentence}",
        _not_enqueued(status, condition.condition),
        _dead(status),
    )
    return RunCondition(condition.condition, "; ".join(part for part in parts if part))


def _ended(status: RunStatus) -> RunCondition | None:
    """Cancelled, finished or paused, whatever the workers do; its clause follows the counts."""
    why = f" ({status.reason})" if status.reason else ""
    if status.state == RunState.CANCELLED:
        return RunCondition(Condition.CANCELLED, f", then cancelled{why}: what is done stays on S3")
    resume = f"dflashq resume {status.name}"
    pause = f"paused{why}" + ("" if resume in status.reason else f": {resume}")
    dead = _dead(status)
    if status.finished:
        parts = [_verdicts(status), dead]
        if status.state == RunState.PAUSED:
            parts.append(pause)
        elif not dead:
            parts.append(f"proof: dflashq verify {status.name}")
        return RunCondition(Condition.FINISHED, ": " + "; ".join(part for part in parts if part))
    if status.state == RunState.PAUSED:
        return RunCondition(Condition.PAUSED, f", {pause}" + (f"; {dead}" if dead else ""))
    return None


def _verdicts(status: RunStatus) -> str:
    counters = status.counters
    rejected = sum(n for name, n in counters.items() if name.startswith("rejected_"))
    return f"{counters.get('accepted', 0):,} accepted, {rejected:,} rejected"


def _dead(status: RunStatus) -> str:
    """The dead batches, without a canary that the others wait for: its condition names it."""
    dead = len(status.dead) - (status.canary == BatchState.DEAD and not status.finished)
    if not dead:
        return ""
    verb = "is" if dead == 1 else "are"
    return f"{counted(dead, 'batch')} {verb} dead: dflashq backfill {status.name}"


def _not_enqueued(status: RunStatus, condition: Condition) -> str:
    missing = status.batches - status.known
    if missing <= 0 or condition in (Condition.ENQUEUE_UNFINISHED, Condition.CANARY_LOST):
        return ""
    return (
        f"{counted(missing, 'batch')} not enqueued yet: if no enqueue is at it, run the same "
        f"dflashq enqueue again"
    )


def _standstill(status: RunStatus) -> RunCondition | None:
    """What no worker can end: the canary is dead or lost, or the enqueue is unfinished."""
    if status.canary == BatchState.DEAD:
        words = dead_canary(status.name, status.waits_for, status.dead[status.waits_for])
        return RunCondition(Condition.CANARY_DEAD, words)
    if is_canary_lost(status):
        return RunCondition(Condition.CANARY_LOST, lost_canary(status.name, status.waits_for))
    idle = not status.pending and not status.leased
    if not (idle and status.known < status.batches) and status.canary != "lost":
        return None
    missing = counted(status.batches - status.known, "batch")
    return RunCondition(
        Condition.ENQUEUE_UNFINISHED,
        f"its enqueue is unfinished, {missing} missing: run the same dflashq enqueue again, or "
        f"dflashq reconcile {status.name}",
    )


def is_canary_lost(status: RunStatus) -> bool:
    """Whether the ledger has every batch of the run but the canary, which the others wait for.

    Where more batches are missing, an enqueue or a reconcile is at work or was interrupted.
    """
    return status.canary == "lost" and status.known >= status.batches - 1 > 0


def _workers(status: RunStatus, alive: list[WorkerView], speed: str) -> RunCondition:
    """What the live workers do about the run."""
    if not alive:
        return RunCondition(Condition.NO_WORKER, f"no worker is up: {START}")
    if status.canary == BatchState.DONE:
        return RunCondition(
            Condition.CANARY_UNJUDGED,
            f"the canary ({status.waits_for}) is done and a worker judges it within seconds; if "
            "this stays, the workers' logs say why they cannot",
        )
    describe = _leased if status.leased else _unbegun
    return describe(status, alive, speed)


def _leased(status: RunStatus, alive: list[WorkerView], speed: str) -> RunCondition:
    """Batches are leased: whether their holders go on, and what keeps them."""
    names = {batch.worker for batch in status.leased}
    holders = [worker for worker in alive if worker.name in names]
    able = [worker for worker in holders if _is_able_to_go_on(worker)]
    if able:
        return _at_work(status, alive, able, speed)
    if status.pending and status.canary in ("", BatchState.PENDING):
        others = _unbegun(status, alive, speed)
        if not others.condition.needs_attention:
            return others
    if holders:
        return _unable(holders)
    held = counted(len(status.leased), "batch")
    return RunCondition(
        Condition.HOLDER_SILENT,
        f"{held} held by {_some(sorted(names))}, not heard of lately: what it holds goes to other "
        "workers when its lease ends; see whether that host is up",
    )


def _at_work(
    status: RunStatus, alive: list[WorkerView], able: list[WorkerView], speed: str
) -> RunCondition:
    if status.canary == BatchState.LEASED:
        return RunCondition(
            Condition.CANARY_AT_WORK,
            f"the canary ({status.waits_for}) is at work and {status.pending:,} others wait "
            "until it has passed",
        )
    names = {worker.name for worker in alive if worker.works_on(status.name)}
    names |= {worker.name for worker in able}
    return RunCondition(Condition.AT_WORK, f"{counted(len(names), 'worker')} at {speed}")


def _unbegun(status: RunStatus, alive: list[WorkerView], speed: str) -> RunCondition:
    """No batch is leased: whether a worker may take one, and what keeps it."""
    serving = [worker for worker in alive if worker.serves(status.queue)]
    if not serving:
        others = _some(sorted({worker.queue for worker in alive}))
        return RunCondition(
            Condition.NOT_SERVED,
            f"none of the workers that are up serves its queue {status.queue} (they serve "
            f"{others}): {START}, with a profile of that queue",
        )
    willing = [worker for worker in serving if status.name not in worker.refuses]
    if not willing:
        reasons = _some([f"{worker.name}: {worker.refusal(status.name)}" for worker in serving])
        return RunCondition(
            Condition.REFUSED,
            f"every worker of its queue refuses it ({reasons}): {START}, with the engine that the "
            "run was begun with, or enqueue the prompts under another name",
        )
    able = [worker for worker in willing if _obstacle(worker) is None]
    return _ready(status, able, speed) if able else _unable(willing)


def _ready(status: RunStatus, able: list[WorkerView], speed: str) -> RunCondition:
    """A batch is pending, and the `able` workers may take it at any moment."""
    between = [worker for worker in able if worker.works_on(status.name)]
    if between and not status.canary:
        return _at_work(status, between, [], speed)  # it is between two batches of the run
    nobody = (
        "the one worker that is up and ready does not work on it yet"
        if len(able) == 1
        else f"none of the {len(able):,} workers that are up and ready works on it yet"
    )
    if status.canary == BatchState.PENDING:
        return RunCondition(
            Condition.CANARY_PENDING,
            f"the canary ({status.waits_for}) goes first and {status.pending - 1:,} others wait "
            f"until it has passed: {nobody}",
        )
    return RunCondition(Condition.PENDING, nobody)


def _is_able_to_go_on(worker: WorkerView) -> bool:
    """Whether the worker goes on with its batches: behind a closed gate, what is in flight does."""
    obstacle = _obstacle(worker)
    closed_only = obstacle is not None and obstacle[0] == Condition.GATES_CLOSED
    return obstacle is None or (closed_only and worker.in_flight > 0)


def _obstacle(worker: WorkerView) -> tuple[Condition, str] | None:
    """Why a worker that is up takes no new prompt of any run; None when it does."""
    if worker.engine == "starting":
        return Condition.ENGINES_STARTING, f"the engine of {worker.name} is starting"
    if worker.sick:
        return Condition.ENGINES_SICK, f"the engine of {worker.name} is sick: {worker.sick}"
    if worker.engine not in ("ready", "?"):
        return Condition.ENGINES_DOWN, f"the engine of {worker.name} is {worker.engine}"
    if worker.gate_closed:
        reasons = "; ".join(worker.gate_closed)
        return Condition.GATES_CLOSED, f"{worker.name} takes no new prompts: {reasons}"
    return None


def _unable(workers: list[WorkerView]) -> RunCondition:
    obstacles = [obstacle for worker in workers if (obstacle := _obstacle(worker)) is not None]
    condition = next(c for c in _REMEDIES if any(c == reason for reason, _ in obstacles))
    words = _some([words for _, words in obstacles])
    return RunCondition(condition, f"no worker can go on with it ({words}): {_REMEDIES[condition]}")


def _some(words: Sequence[str]) -> str:
    more = [f"and {len(words) - SHOWN:,} more"] if len(words) > SHOWN else []
    return ", ".join([*words[:SHOWN], *more])
