"""The whole fleet on a real SGLang on the CPU against SGLang's own serving benchmark.

Both send the same prompts to the same server, with the same sampling and as many at once. The tiny
model answers forty prompts a second, more than any real model, so the cost of the client counts for
more. BENCH_REAL_PROFILE=smollm2-cpu takes a slower model.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import psutil

from dflashq.config import Settings
from dflashq.embedded.cpu_engine import engine_environment, ensure_engine, ensure_smollm2
from dflashq.engine.dialects.sglang import generate_body
from tests.benchmarks.results import Figure
from tests.benchmarks.setup import enqueue_run, pin, pin_servers, unpin
from tests.support.fleet import FleetHarness, WorkerHandle, prompts_file
from tests.support.rehearsal import TINY

PROFILE = os.environ.get("BENCH_REAL_PROFILE", "tiny-cpu")
PROMPTS, BATCH, IN_FLIGHT = (1200, 400, 40) if PROFILE == "tiny-cpu" else (160, 80, 40)
GOAL = 0.97
# The benchmark imports `datasets`, which serving does not need: ours, behind the engine's own.
RUN = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module('sglang.benchmark.serving', run_name='__main__')"
)


def measure(base: Settings, folder: Path, rounds: int) -> list[Figure]:
    """Interleaved on one server: its own benchmark, then the fleet. A first pair warms it up."""
    unpin()
    prompts = prompts_file(folder / "prompts.jsonl", PROMPTS)
    python = ensure_engine(base.cache_dir, lambda _line: None)
    model = TINY if PROFILE == "tiny-cpu" else ensure_smollm2(base.cache_dir, lambda _line: None)
    settings = base.model_copy(update={"model_path": str(model), "sweep_s": 5.0})
    (folder / "real").mkdir()
    with FleetHarness(settings, Path(PROFILE), folder / "real") as fleet:
        worker = fleet.start("real", wait=False)
        worker.wait_ready(300)
        url = _address(worker)
        _pin(worker)
        pairs = [
            (
                benchmark_tokens_per_s(python, url, folder, fleet, prompts),
                fleet_tokens_per_s(fleet, f"real-{n}", prompts),
            )
            for n in range(rounds + 1)
        ][1:]
    shown = ", ".join(f"{ours:.0f}/{theirs:.0f}" for theirs, ours in pairs)
    return [
        Figure(
            "fleet against sglang.benchmark.serving",
            tuple(ours / theirs for theirs, ours in pairs),
            GOAL,
            at_least=True,
            beside=f"output tokens/s, fleet/benchmark: {shown}",
            more={"benchmark_fleet_tokens_per_s": pairs, "prompts": PROMPTS},
        )
    ]


def fleet_tokens_per_s(fleet: FleetHarness, run: str, prompts: Path) -> float:
    """Output tokens per second from the hints to the commit of the last batch."""
    enqueue_run(fleet, run, prompts, BATCH)
    began = time.monotonic()
    fleet.wait_finished(run, 900)
    seconds = time.monotonic() - began
    return fleet.oracle(run).output_tokens / seconds


def benchmark_tokens_per_s(
    python: Path, url: str, folder: Path, fleet: FleetHarness, prompts: Path
) -> float:
    """Output tokens per second that SGLang's benchmark reports."""
    dataset, out = folder / "dataset.jsonl", folder / "serving.jsonl"
    rows = [json.loads(line)["messages"][0] for line in prompts.read_text().splitlines()]
    turns = [[row, {"role": "assistant", "content": "an answer"}] for row in rows]
    dataset.write_text("".join(json.dumps({"conversations": t}) + "\n" for t in turns))
    out.unlink(missing_ok=True)
    sampling, model = fleet.profile.sampling, fleet.profile.model
    body = generate_body([], sampling, "", fleet_ends(fleet))
    command = [
        *(str(python), "-c", RUN, str(_packages()), "--backend", "sglang"),
        *("--base-url", url, "--model", model.id, "--tokenizer", model.path),
        *("--dataset-name", "custom", "--dataset-path", str(dataset), "--apply-chat-template"),
        *("--num-prompts", str(PROMPTS), "--max-concurrency", str(IN_FLIGHT)),
        *("--sharegpt-output-len", str(sampling.max_new_tokens), "--request-rate", "inf"),
        *("--disable-ignore-eos", "--disable-stream", "--disable-tqdm", "--warmup-requests", "0"),
        *("--extra-request-body", json.dumps({"sampling_params": body["sampling_params"]})),
        *("--output-file", str(out)),
    ]
    environment = os.environ | engine_environment()
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    report = json.loads(out.read_text().splitlines()[-1])
    assert report["completed"] == PROMPTS, report["completed"]
    return float(report["output_throughput"])


def _pin(worker: WorkerHandle) -> None:
    """The model has a core to itself; either client shares the other with all the servers."""
    pin_servers(1)  # what this process starts from now on is bound as well
    models = [
        process
        for process in psutil.Process(worker.process.pid).children(recursive=True)
        if "scheduler" in " ".join(process.cmdline())
    ]
    assert len(models) == 1, models
    pin(models[0], 0)


def _packages() -> Path:
    """Where this environment has its packages."""
    spec = find_spec("datasets")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def fleet_ends(fleet: FleetHarness) -> frozenset[int]:
    """The end ids of the model, as the fleet sends them."""
    from dflashq.engine.chat_renderer import ChatRenderer  # noqa: PLC0415 - seconds of imports

    return ChatRenderer(fleet.profile.model.path).markers().end_ids


def _address(worker: WorkerHandle) -> str:
    """Where the worker's engine listens."""
    for process in psutil.Process(worker.process.pid).children(recursive=True):
        line = process.cmdline()
        if "sglang.launch_server" in line:
            return f"http://127.0.0.1:{line[line.index('--port') + 1]}"
    raise AssertionError(f"no engine:\n{worker.tail()}")
