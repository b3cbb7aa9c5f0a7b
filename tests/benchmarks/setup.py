"""What every benchmark needs: fleets on emulated engines, pinned cores, engine counters."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import requests

from dflashq.config import Settings
from dflashq.core.model import Guard, RunSpec, Sampling
from dflashq.operations.runs.enqueue import enqueue, run_record
from dflashq.prompts.batches import spooled
from tests.support.engine_emulator import emulated_profile
from tests.support.fault_fleet import engine_of, engine_port
from tests.support.fleet import FleetHarness, WorkerHandle, wait_until
from tests.support.rehearsal import TINY

POLL_S = 0.1
_CORES: list[int] = sorted(os.sched_getaffinity(0))
NO_GUARD = Guard(canary=0, max_rejected=1.0)


def pin(process: psutil.Process, core: int) -> None:
    """Bind every thread of a process to one core; without a second core nothing is bound."""
    if len(_CORES) < 2:
        return
    with contextlib.suppress(ProcessLookupError, FileNotFoundError, psutil.NoSuchProcess):
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            os.sched_setaffinity(int(thread), {_CORES[core % len(_CORES)]})


def pin_servers(core: int) -> None:
    """Bind this process and the servers that it started (not the workers) to one core."""
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        pin(process, core)


def unpin() -> None:
    """Let this process and what it starts from now on run on every core."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), set(_CORES))


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds that a process has used, its children apart."""
    times = process.cpu_times()
    return float(times.user + times.system)


@dataclass(frozen=True, slots=True)
class Engine:
    """The emulated engine of one worker."""

    process: psutil.Process
    url: str

    @classmethod
    def of(cls, worker: WorkerHandle) -> Engine:
        process = engine_of(worker)
        assert process is not None, f"no engine:\n{worker.tail()}"
        return cls(process, f"http://127.0.0.1:{engine_port(process)}")

    def stats(self) -> dict[str, Any]:
        """Counters of this instant."""
        answer = requests.get(f"{self.url}/stats", params={"prompts": "0"}, timeout=30)
        answer.raise_for_status()
        counters: dict[str, Any] = answer.json()
        return counters

    def until(
        self, condition: Callable[[dict[str, Any]], bool], timeout_s: float
    ) -> dict[str, Any]:
        """Poll until the counters fulfil the condition; those counters."""
        deadline = time.monotonic() + timeout_s
        while not condition(stats := self.stats()):
            assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {stats}"
            time.sleep(POLL_S)
        return stats


@contextmanager
def fleet_of(
    base: Settings,
    folder: Path,
    *,
    concurrency: int = 3,
    workers: int = 0,
    in_flight: dict[str, object] | None = None,
    **options: Any,
) -> Iterator[FleetHarness]:
    """A fleet on an emulated engine of its own kind; `workers` of them are up and ready.

    `in_flight` is the profile's concurrency table, `options` are those of the emulated engine.
    """
    folder.mkdir(parents=True)
    unpin()
    profile = emulated_profile(
        folder,
        model_dir=TINY,
        name=folder.name,
        context_length=65536,
        concurrency=in_flight,
        **options,
    )
    usual = {"sweep_s": Settings.model_fields["sweep_s"].default}
    settings = base.model_copy(update=usual | {"concurrency": concurrency})
    with FleetHarness(settings, profile, folder) as fleet:
        for number in range(workers):
            fleet.start(f"{folder.name}-{number}", wait=False)
        for worker in fleet.workers:
            worker.wait_ready(180)
        yield fleet


def enqueue_run(fleet: FleetHarness, run: str, prompts: Path, batch_size: int) -> int:
    """Enqueue a run without a canary, which would go alone first. Returns its number of prompts."""
    model = fleet.profile.model
    spec = RunSpec(
        model=model.source or model.id,
        revision=model.revision,
        queue=fleet.profile.queue,
        thinking=model.thinking,
        sampling=Sampling(**fleet.profile.sampling.model_dump()),
        batch_size=batch_size,
        guard=NO_GUARD,
    )
    rejected = fleet.folder / f"rejected-{run}.jsonl"
    with spooled([prompts], rejected_path=rejected, batch_size=batch_size) as prepared:
        record = run_record(run, spec, prepared, datetime.now(UTC))
        enqueue(fleet.ledger, fleet.blobs, fleet.hints, record, prepared, lambda *_: None)
        return prepared.prompts


def wait_settled(fleet: FleetHarness, run: str, share: float, timeout_s: float) -> None:
    """Until this share of a run's batches is done."""

    def reached() -> bool:
        status = fleet.ledger.status(run)
        return status.done >= share * status.batches

    wait_until(reached, f"{share:.0%} of run {run}", timeout_s)
