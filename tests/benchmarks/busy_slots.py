"""Busy slots: overlapping batches against one batch at a time."""

from __future__ import annotations

from pathlib import Path

import psutil

from dflashq.config import Settings
from tests.benchmarks.results import Figure
from tests.benchmarks.setup import Engine, enqueue_run, fleet_of, pin, pin_servers
from tests.support.fleet import prompts_file

# 1,000 prompts on 64 slots, scaled down by four: a batch is 15.6 slots deep, and its longest
# answer lasts as long as sixteen mean ones.
SLOTS, BATCH, BATCHES = 16, 250, 12
LENGTHS = "lognormal:mean=2068,sigma=0.807,cap=32000"  # P90 4,200
TOKEN_MS = 0.25
GOAL = 0.98


def busy_share(base: Settings, folder: Path, concurrency: int, prompts: Path) -> float:
    """Share of slots that are busy from the first full batch until nothing is left to admit."""
    with fleet_of(
        base,
        folder,
        concurrency=concurrency,
        workers=1,
        slots=SLOTS,
        token_ms=TOKEN_MS,
        lengths=LENGTHS,
        sampling={"max_new_tokens": 32768},
    ) as fleet:
        engine = Engine.of(fleet.workers[0])
        pin_servers(1)
        pin(psutil.Process(fleet.workers[0].process.pid), 0)
        before = engine.stats()["received"]
        count = enqueue_run(fleet, folder.name, prompts, BATCH)
        first = engine.until(lambda s: s["running"] == SLOTS, 60)
        last = engine.until(lambda s: s["received"] - before >= count, 900)
        fleet.wait_finished(folder.name, 300)
        fleet.oracle(folder.name)
    passed = last["clock_s"] - first["clock_s"]
    return float((last["slot_seconds"] - first["slot_seconds"]) / (SLOTS * passed))


def measure(base: Settings, folder: Path, rounds: int) -> list[Figure]:
    """Interleaved: three batches at once, then one at a time, in every round."""
    prompts = prompts_file(folder / "prompts.jsonl", BATCH * BATCHES)
    pairs = [
        (
            busy_share(base, folder / f"three-{n}", 3, prompts),
            busy_share(base, folder / f"one-{n}", 1, prompts),
        )
        for n in range(rounds)
    ]
    alone = ", ".join(f"{share:.3f}" for _, share in pairs)
    return [
        Figure(
            "slots busy in steady state",
            tuple(share for share, _ in pairs),
            GOAL,
            at_least=True,
            beside=f"one batch at a time: {alone}",
            more={"one_at_a_time": [share for _, share in pairs], "batches": BATCHES},
        )
    ]
