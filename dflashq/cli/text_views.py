"""Runs and workers as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from dflashq.core.estimates.rate import in_words
from dflashq.core.states import RunState
from dflashq.ledger import Ledger
from dflashq.ledger.models import RunStatus
from dflashq.operations.monitoring.insights import RunView, run_view
from dflashq.operations.monitoring.worker_view import WorkerView, worker_views

SHOWN = 10
MIB = 2**20


@dataclass(frozen=True, slots=True)
class RunDetails:
    """A run with its leased batches, the stories of its dead batches, and the workers."""

    status: RunStatus
    view: RunView
    workers: list[WorkerView]
    stories: dict[str, list[str]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        leased = [
            {"batch": b.name, "worker": b.worker, "attempts": b.attempts, "kept": b.kept}
            for b in self.status.leased
        ]
        dead = [
            {"batch": name, "reason": why, "story": self.stories.get(name, [])}
            for name, why in sorted(self.status.dead.items())
        ]
        row = self.view.to_json() | {"leased_batches": leased, "dead_batches": dead}
        dead_in_stages = {name: stage.dead for name, stage in self.status.stages.items()}
        row |= {"dead_batches_in_stages": dead_in_stages}
        return row | {"workers": [asdict(w) for w in self.workers]}

    def measured(self, per_s: float) -> Self:
        """The same with a measured speed in place of the announced one."""
        return replace(self, view=run_view(self.status, self.workers, per_s))


def read_details(ledger: Ledger, run: str) -> RunDetails:
    """A run as it is now. Blocks on Redis. UnknownRunError when there is none, LedgerError."""
    status = replace(ledger.status(run), refusal=ledger.refusal())
    workers = worker_views(ledger.workers())
    stories = {
        batch: [str(event["what"]) for event in ledger.story(run, batch)]
        for batch in sorted(status.dead)[:SHOWN]
    }
    return RunDetails(status, run_view(status, workers), workers, stories)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns; the first column to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def runs_lines(views: Iterable[RunView]) -> list[str]:
    """The runs as a table, one line a run."""
    head = ("run", "state", "done", "leased", "pending", "dead", "settled", "accepted", "rejected")
    rows: list[tuple[str, ...]] = [(*head, "tokens", "age")]
    for v in views:
        counts = (v.leased, v.pending + v.waiting, v.dead)
        settled = (f"{v.settled:,}/{v.prompts:,}", f"{v.accepted:,}", f"{v.rejected:,}")
        state = "finished" if v.finished and v.state == RunState.ACTIVE else v.state
        numbers = (f"{v.done:,}/{v.total:,}", *(f"{n:,}" for n in counts), *settled)
        rows.append((v.name, state, *numbers, f"{v.output_tokens:,}", in_words(v.age_s)))
    return columns(rows)


def workers_lines(workers: Sequence[WorkerView]) -> list[str]:
    """The workers as a table, one line a worker, and what keeps them under it."""
    if not workers:
        return ["no worker is up: celery -A workers worker"]
    rows = [("worker", "engine", "in flight", "batches", "tokens/s", "heard of")]
    for w in workers:
        flight = f"{w.in_flight}/{w.limit}"
        heard = f"{in_words(w.silent_s)} ago" + ("" if w.alive else " (silent)")
        rows.append(
            (
                w.name,
                "sick" if w.sick else w.engine,
                flight,
                str(len(w.batches)),
                f"{w.tokens_per_s:,.0f}",
                heard,
            )
        )
    lines = columns(rows)
    lines += [f"  {w.name} is sick: {w.sick}" for w in workers if w.sick]
    return lines + [f"  {w.name} takes no new prompts: {why}" for w in workers for why in w.closed]


def run_lines(details: RunDetails) -> list[str]:
    """Everything on one run, its sentence last."""
    v = details.view
    state = v.state + (f" ({v.reason})" if v.reason else "")
    rows = [
        ("run", f"{v.name}, {state}, enqueued {in_words(v.age_s)} ago, queue {v.queue}"),
        ("batches", _counts(v)),
        ("prompts", f"{v.settled:,} of {v.prompts:,} settled, {v.accepted:,} accepted"),
        ("rejected", _rejected(v)),
        ("tokens", f"{v.output_tokens:,}"),
        ("kept", f"{v.kept_bytes / MIB:,.1f} MiB of unfinished batches"),
        *((stage, _stage_counts(counts)) for stage, counts in v.stages.items()),
    ]
    lines = [f"{name:<9} {text}" for name, text in rows]
    lines += _leased_lines(details.status) + _dead_lines(details)
    return [*lines, "", *workers_lines(details.workers), "", v.sentence]


def _counts(v: RunView) -> str:
    parts = [f"{v.done:,} of {v.total:,} done", f"{v.leased:,} leased", f"{v.pending:,} pending"]
    parts += [f"{v.waiting:,} waiting"] if v.waiting else []
    return ", ".join([*parts, f"{v.dead:,} dead"])


def _stage_counts(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    rest = ", ".join(f"{counts[state]:,} {state}" for state in ("leased", "pending", "dead"))
    return f"{counts['done']:,} of {total:,} batches done, {rest}"


def _rejected(v: RunView) -> str:
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in v.rejects.items())
    return f"{v.rejected:,}" + (f": {reasons}" if reasons else "")


def _leased_lines(status: RunStatus) -> list[str]:
    if not status.leased:
        return []
    rows = [("leased", "worker", "attempts", "kept")]
    rows += [(b.name, b.worker, str(b.attempts), f"{b.kept:,}") for b in status.leased[:SHOWN]]
    return ["", *columns(rows), *_more(len(status.leased))]


def _dead_lines(details: RunDetails) -> list[str]:
    lines = []
    for batch, why in sorted(details.status.dead.items())[:SHOWN]:
        lines.append(f"dead: {batch}: {why}")
        lines += [f"    {what}" for what in details.stories.get(batch, [])[-5:]]
    for stage, counts in details.status.stages.items():
        lines += [f"dead: {stage}: {b}: {why}" for b, why in sorted(counts.dead.items())[:SHOWN]]
    return ["", *lines, *_more(len(details.status.dead))] if lines else []


def _more(count: int) -> list[str]:
    return [f"and {count - SHOWN} more (--json)"] if count > SHOWN else []
