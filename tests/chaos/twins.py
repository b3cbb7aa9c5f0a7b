"""Starts a second worker under the name of a running one, as a crash-looping pod would be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.chaos.observed_leases import Held, LeaseWatcher
from tests.support.engine_emulator import emulated_profile
from tests.support.fault_fleet import FaultFleet
from tests.support.fleet import WorkerHandle

NO_ENGINE = "no GPU is here, says the twin's engine"


class Twins:
    """Starts twins; counts how they ended, and what they cost the workers that they copied."""

    def __init__(self, fault_fleet: FaultFleet, watcher: LeaseWatcher, model: Path) -> None:
        self._fault_fleet, self._watcher = fault_fleet, watcher
        self._folder = fault_fleet.folder / "twin"
        self._folder.mkdir()
        # The same model and queue, so that a twin which is let in would take its work.
        self._profile = emulated_profile(
            self._folder,
            model_dir=model,
            name=fault_fleet.profile.model.id,
            faults={"exit_at_start": NO_ENGINE},
        )
        self.exits: Counter[int] = Counter()
        self.problems: list[str] = []

    def start(self, name: str) -> Callable[[], bool]:
        """Start one twin of the worker `name`. Returns a check that is True once it has ended."""
        worker = self._fault_fleet.named[name]
        held, since_ms = (
            self._watcher.held_leases(worker.name),
            self._fault_fleet.ledger.now_s() * 1000,
        )
        elsewhere = {
            "lock_dir": self._folder / "locks",
            "state_dir": self._folder / "state",
        }
        settings = self._fault_fleet.proxies[name].settings.model_copy(update=elsewhere)
        twin = WorkerHandle(settings, self._profile, name, self._folder / f"{name}.log")

        def ended() -> bool:
            if twin.process.poll() is None:
                return False
            self._account(worker, twin, held, since_ms)
            return True

        return ended

    def _account(
        self, worker: WorkerHandle, twin: WorkerHandle, held: set[Held], since_ms: float
    ) -> None:
        self.exits[twin.process.returncode] += 1
        if twin.process.returncode == 0:
            self.problems.append(f"a twin of {worker.name} ended with 0: it was let in")
        if worker.process.poll() is not None:
            self.problems.append(f"{worker.name} ended while its twin started")
        for run, batch, fence in held - self._watcher.held_leases(worker.name):
            story = self._fault_fleet.ledger.story(run, batch)
            # A batch that the worker handed back itself was not taken by the twin.
            if any(e["at"] >= since_ms and taken_from(worker.name, str(e["what"])) for e in story):
                self.problems.append(
                    f"a twin cost {worker.name} its lease of {run}/{batch} {fence}"
                )


def taken_from(worker: str, sentence: str) -> bool:
    """Whether a line of a batch's story says that this worker was taken for dead."""
    return f"worker {worker} " in sentence and "fell silent past its lease" in sentence
