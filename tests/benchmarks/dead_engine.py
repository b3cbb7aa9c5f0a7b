"""Four engines, one at half speed, one killed half-way: how near to what the others can do."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from dflashq.config import Settings
from tests.benchmarks.results import Figure
from tests.benchmarks.setup import Engine, enqueue_run, fleet_of, unpin, wait_settled
from tests.support.fault_fleet import engine_events
from tests.support.fleet import prompts_file

# As in a campaign, a batch is more than one fill of the engine, and every engine sees some fifty.
SLOTS, BATCH, PROMPTS = 8, 10, 4000
LENGTHS = "lognormal:mean=200,sigma=0.5,cap=600"
TOKEN_MS = 3.0
GOAL = 1.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """One round, in seconds: from the first request to the last answer, and its bound."""

    makespan_s: float
    bound_s: float
    killed_at_s: float


def bound_s(tokens: int, by_the_dead: int, tokens_per_s: float) -> float:
    """Seconds that the survivors need at full speed for what the dead engine did not answer."""
    return (tokens - by_the_dead) / tokens_per_s


def measure_round(base: Settings, folder: Path, prompts: Path) -> Outcome:
    """Run it once; kill the second worker and its engine when half of the batches are done."""
    stats = folder.parent / f"{folder.name}.jsonl"
    with fleet_of(
        base,
        folder,
        workers=4,
        slots=SLOTS,
        token_ms=TOKEN_MS,
        lengths=LENGTHS,
        stats_file=stats,
    ) as fleet:
        slow, doomed, *_ = (Engine.of(worker) for worker in fleet.workers)
        slowed = requests.post(f"{slow.url}/faults", json={"slow": 2.0}, timeout=10)
        slowed.raise_for_status()
        dead_pid = doomed.process.pid
        enqueue_run(fleet, folder.name, prompts, BATCH)
        wait_settled(fleet, folder.name, 0.5, 300)
        killed_at = time.time()
        fleet.workers[1].kill()
        fleet.wait_finished(folder.name, 300)
        fleet.oracle(folder.name)
    rows = list(engine_events(stats))
    began = min(row["t"] for row in rows if row["event"] == "received")
    answers = [row for row in rows if row["event"] == "answered"]
    first = {row["prompt"]: row for row in reversed(answers)}
    by_the_dead = sum(row["ids"] for row in first.values() if row["pid"] == dead_pid)
    capacity = 2.5 * SLOTS / (TOKEN_MS / 1000)
    bound = bound_s(sum(row["ids"] for row in first.values()), by_the_dead, capacity)
    return Outcome(max(row["t"] for row in answers) - began, bound, killed_at - began)


def measure(base: Settings, folder: Path, rounds: int) -> list[Figure]:
    """The processes run on every core: there are more of them than cores."""
    unpin()
    prompts = prompts_file(folder / "prompts.jsonl", PROMPTS)
    outcomes = [measure_round(base, folder / f"four-{n}", prompts) for n in range(rounds)]
    more: dict[str, Any] = {"rounds": [_row(o) for o in outcomes]}
    shown = "; ".join(f"{o.makespan_s:.1f} s, bound {o.bound_s:.1f} s" for o in outcomes)
    values = tuple(o.makespan_s / o.bound_s for o in outcomes)
    return [
        Figure("makespan with a slow and a killed engine", values, GOAL, False, shown, more),
    ]


def _row(outcome: Outcome) -> dict[str, float]:
    return {
        "makespan_s": outcome.makespan_s,
        "bound_s": outcome.bound_s,
        "killed_at_s": outcome.killed_at_s,
    }
