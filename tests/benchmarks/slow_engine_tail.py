"""600 prompts on 64 slots with a heavy tail: the time it takes, and what the client burns."""

from __future__ import annotations

import heapq
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from dflashq.config import Settings
from dflashq.engine.chat_renderer import ChatRenderer
from tests.benchmarks.results import Figure
from tests.benchmarks.setup import Engine, cpu_s, enqueue_run, fleet_of, pin, pin_servers
from tests.support.engine_emulator import EmulatedEngine, prompt_hash
from tests.support.engine_emulator.answers import LengthDistribution
from tests.support.engine_emulator.profile import token_options
from tests.support.fault_fleet import engine_events
from tests.support.fleet import prompts_file
from tests.support.rehearsal import TINY

PROMPTS, SLOTS, BATCH = 600, 64, 600
TOKEN_MS = 50.0
# 1 to 13 s at 50 ms a token, mean 2.26 s: 600 of them are 21.2 s on 64 slots.
LENGTHS = "pareto:low=20,alpha=1.46,cap=260"
SEED = 182
GOAL, CPU_GOAL = 1.38, 1.0
PEER = "datatrove"
NO_PEER = f"{PEER} is not installed (BENCH_PEER_PYTHON names a python that has it)"
SCRIPT = Path(__file__).with_name("datatrove_comparison.py")


def drawn_seconds(seed: int) -> list[float]:
    """Seconds of every answer in the order of the prompts, as the engine will draw them."""
    renderer, lengths = ChatRenderer(TINY), LengthDistribution.parse(LENGTHS)
    seconds = []
    for number in range(PROMPTS):
        turn = {"role": "user", "content": f"What is {number} plus 0?"}
        ids = renderer.render([turn], None, thinking=True)
        seconds.append(lengths.draw(f"{seed}|{prompt_hash(ids)}") * TOKEN_MS / 1000)
    return seconds


def ideal_and_floor(seconds: list[float]) -> tuple[float, float]:
    """Two bounds in seconds: all slots busy to the end; the best that keeps the prompts' order."""
    ends = [0.0] * SLOTS
    for duration in seconds:
        heapq.heappush(ends, heapq.heappop(ends) + duration)
    return sum(seconds) / SLOTS, max(ends)


def measure_round(base: Settings, folder: Path, prompts: Path) -> tuple[float, float]:
    """Seconds from the first request to the last answer; CPU seconds of the worker meanwhile."""
    stats = folder.parent / f"{folder.name}.jsonl"
    with fleet_of(
        base,
        folder,
        workers=1,
        slots=SLOTS,
        token_ms=TOKEN_MS,
        lengths=LENGTHS,
        seed=SEED,
        stats_file=stats,
    ) as fleet:
        engine = Engine.of(fleet.workers[0])
        worker = psutil.Process(fleet.workers[0].process.pid)
        pin_servers(1)
        pin(worker, 0)
        before = engine.stats()["received"]
        used = cpu_s(worker)
        enqueue_run(fleet, folder.name, prompts, BATCH)
        engine.until(lambda s: s["received"] - before >= PROMPTS and not s["running"], 120)
        fleet.wait_finished(folder.name, 60)
        used = cpu_s(worker) - used
        fleet.oracle(folder.name)
    return _makespan(engine_events(stats)), used


def measure_peer(python: str, folder: Path) -> tuple[float, float]:
    """The same of datatrove against an engine that draws the same lengths; its imports apart."""
    folder.mkdir()
    stats = folder / "stats.jsonl"
    options = {"slots": SLOTS, "token_ms": TOKEN_MS, "lengths": LENGTHS, "seed": SEED}
    with EmulatedEngine(
        chat="sglang", tokenizer=TINY, stats_file=stats, **options, **token_options(TINY)
    ) as engine:
        command = [python, str(SCRIPT), engine.url, str(PROMPTS), str(SLOTS), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in stats.read_text().splitlines()]
    used = float(json.loads(done.stdout.splitlines()[-1])[2])
    return _makespan(rows), used


def _makespan(rows: Iterable[dict[str, Any]]) -> float:
    """Seconds from the first request to the last answer."""
    times = [(row["event"], row["t"]) for row in rows]
    first = min(time for event, time in times if event == "received")
    return float(max(time for event, time in times if event == "answered") - first)


def measure(base: Settings, folder: Path, rounds: int) -> list[Figure]:
    """The CPU is the worker's from the enqueue to the commit of the last batch."""
    prompts = prompts_file(folder / "prompts.jsonl", PROMPTS)
    ideal, floor = ideal_and_floor(drawn_seconds(SEED))
    python = peer_python()
    rounds_done, peers = [], []
    for number in range(rounds):
        rounds_done.append(measure_round(base, folder / f"tail-{number}", prompts))
        if python is not None:
            peers.append(measure_peer(python, folder / f"peer-{number}"))
    beside = f"ideal {ideal:.1f} s, floor {floor / ideal:.3f} x ideal; "
    times = ", ".join(f"{seconds / ideal:.3f}" for seconds, _ in peers)
    cpus = ", ".join(f"{cpu:.2f}" for _, cpu in peers)
    return [
        Figure(
            "makespan of 600 heavy-tailed prompts",
            tuple(seconds / ideal for seconds, _ in rounds_done),
            GOAL,
            at_least=False,
            beside=beside + (f"{PEER}: {times}" if peers else NO_PEER),
            more={"ideal_s": ideal, "floor_s": floor, "makespan_s": [s for s, _ in rounds_done]},
        ),
        Figure(
            "client CPU seconds for the 600",
            tuple(cpu for _, cpu in rounds_done),
            CPU_GOAL,
            at_least=False,
            beside="start apart, commits included; " + (f"{PEER}: {cpus}" if peers else NO_PEER),
            more={"peer": PEER if peers else "", "peer_makespan_s_and_cpu_s": peers},
        ),
    ]


def peer_python() -> str | None:
    """A Python that has the peer: this one, or that of BENCH_PEER_PYTHON. None: leave it out."""
    chosen = os.environ.get("BENCH_PEER_PYTHON")
    return chosen or (sys.executable if find_spec(PEER) is not None else None)
