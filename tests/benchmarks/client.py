"""What a sample costs the client: 512 in flight, 4,000 ids an answer, against a bare loop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from dflashq.config import Settings
from tests.benchmarks.results import Figure
from tests.benchmarks.setup import Engine, cpu_s, enqueue_run, fleet_of, pin, pin_servers, unpin
from tests.support.fleet import ROOT, FleetHarness, prompts_file

IN_FLIGHT, TOKENS, COUNT, BATCH = 512, 4000, 2000, 1000
TOKEN_MS = 2.0
GOAL = 2.0


def worker_cpu_s(fleet: FleetHarness, engine: Engine, run: str, prompts: Path) -> float:
    """CPU seconds of the worker for a run of COUNT prompts, from the enqueue to its commit."""
    worker = psutil.Process(fleet.workers[0].process.pid)
    used = cpu_s(worker)
    enqueue_run(fleet, run, prompts, BATCH)
    engine.until(lambda s: s["running"] > 0, 60)
    fleet.wait_finished(run, 600)
    used = cpu_s(worker) - used
    fleet.oracle(run)
    return used


def baseline_cpu_s(engine: Engine) -> float:
    """CPU seconds of the bare loop for as many answers of the same engine."""
    unpin()
    command = [sys.executable, "-m", "tests.benchmarks.baseline_loop", engine.url]
    command += map(str, (COUNT, IN_FLIGHT, TOKENS))
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        pin(psutil.Process(process.pid), 0)
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return float(output)


def measure(base: Settings, folder: Path, rounds: int) -> list[Figure]:
    """Interleaved on one engine: the bare loop, then the worker, in every round."""
    prompts = prompts_file(folder / "prompts.jsonl", COUNT)
    pairs = []
    with fleet_of(
        base,
        folder / "client",
        workers=1,
        slots=IN_FLIGHT,
        token_ms=TOKEN_MS,
        lengths=f"fixed:{TOKENS}",
        in_flight={"margin": 0},
        sampling={"max_new_tokens": TOKENS + 100},
    ) as fleet:
        engine = Engine.of(fleet.workers[0])
        for number in range(rounds):
            bare = baseline_cpu_s(engine)
            pin_servers(1)
            pin(psutil.Process(fleet.workers[0].process.pid), 0)
            pin(engine.process, 1)
            pairs.append((worker_cpu_s(fleet, engine, f"client-{number}", prompts), bare))
    costs = ", ".join(
        f"{ours / COUNT * 1000:.2f}/{bare / COUNT * 1000:.2f}" for ours, bare in pairs
    )
    return [
        Figure(
            "client cost against a bare loop",
            tuple(ours / bare for ours, bare in pairs),
            GOAL,
            at_least=False,
            beside=f"CPU s per 1,000 samples, ours/bare: {costs}",
            more={"cpus": os.cpu_count(), "ours_bare_cpu_s": pairs, "samples": COUNT},
        )
    ]
