"""Real worker processes for the tests, and the one oracle that every fleet test ends in."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core.model import Guard, RetryStep, RunRecord, RunSpec, Sampling
from dflashq.core.worker_identity import ProcessIdentity
from dflashq.engine.profiles import Profile, load_profile
from dflashq.ledger import Hints, Lease, Ledger
from dflashq.operations.results.verify import VerifyReport, verify
from dflashq.operations.runs.enqueue import enqueue, run_record
from dflashq.operations.runs.manifest import read_manifest
from dflashq.prompts.batches import spooled
from dflashq.system import procfs
from tests.support.engine_emulator import prompt_hash
from tests.support.env import environment
from tests.support.paths import ROOT
from tests.support.wait import WAIT_S, wait_until

# Most tests are about something else than a run that stops itself.
UNGUARDED = Guard(canary=0, max_rejected=1.0, min_median_tokens=0)


class WorkerHandle:
    """One `celery -A workers worker` process in a session of its own.

    `host` names another host than this one, as which it takes its own; `program` is what python
    is to run instead of Celery.
    """

    def __init__(
        self,
        settings: Settings,
        profile: Path,
        name: str,
        log: Path,
        loglevel: str = "INFO",
        host: str = "",
        program: Sequence[str] = (),
    ) -> None:
        self.name, self.log = f"{name}@test", log
        self._ledger = Ledger(settings)
        module = ["-m", "tests.support.other_host", host] if host else ["-m", "celery"]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, *(program or module), "-A", "workers", "worker"),
                    *("-n", self.name, "--profile", str(profile), "--loglevel", loglevel),
                    *("--without-gossip", "--without-mingle"),
                ],
                cwd=ROOT,
                env=environment(settings),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def ready(self) -> bool:
        assert self.process.poll() is None, f"worker ended early:\n{self.tail()}"
        row = self.row()
        return row is not None and row["engine"] == "ready"

    def row(self) -> dict[str, Any] | None:
        """What this very process announced last; None while its name is another's or nobody's."""
        row = self._ledger.worker(self.name)
        its = None if row is None else ProcessIdentity.from_row(row)
        started = procfs.start_time(self.process.pid)
        if its is None or (its.pid, its.start_ticks) != (self.process.pid, started):
            return None
        return row

    def wait_ready(self, timeout_s: float = WAIT_S) -> None:
        wait_until(lambda: self.ready, f"worker {self.name} is ready", timeout_s)

    def family(self) -> list[psutil.Process]:
        """The worker and everything below it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            me = psutil.Process(self.process.pid)
            return [me, *me.children(recursive=True)]
        return []

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self, timeout_s: float = WAIT_S) -> int:
        """SIGTERM, then the exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """kill -9 of the worker alone: its engine has to notice."""
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
        self.process.wait(WAIT_S)

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class FleetHarness:
    """Workers on one profile, and what a test does with runs. A context manager."""

    def __init__(self, settings: Settings, profile: Path, folder: Path) -> None:
        self.settings, self.profile_path, self.folder = settings, profile, folder
        self.profile: Profile = load_profile(str(profile), settings)
        self.ledger, self.blobs = Ledger(settings), Blobs(settings)
        self.hints = Hints(settings)
        self.workers: list[WorkerHandle] = []
        self._family: list[psutil.Process] = []

    def __enter__(self) -> FleetHarness:
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self.workers:
            self._family += worker.family()
        for worker in self.workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.stop(30)
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def start(
        self, name: str, *, wait: bool = True, loglevel: str = "INFO", host: str = ""
    ) -> WorkerHandle:
        log = self.folder / f"{name}{host}.log"
        worker = WorkerHandle(self.settings, self.profile_path, name, log, loglevel, host)
        self.workers.append(worker)
        if wait:
            worker.wait_ready()
            self._family += worker.family()
        return worker

    def enqueue(
        self,
        run: str,
        prompts: Path,
        *,
        batch_size: int = 8,
        thinking: bool | None = None,
        guard: Guard = UNGUARDED,
        ladder: tuple[RetryStep, ...] = (),
        **sampling: float,
    ) -> RunRecord:
        model = self.profile.model
        spec = RunSpec(
            model=model.source or model.id,
            revision=model.revision,
            queue=self.profile.queue,
            thinking=model.thinking if thinking is None else thinking,
            sampling=Sampling(**(self.profile.sampling.model_dump() | sampling)),
            guard=guard,
            ladder=ladder,
            batch_size=batch_size,
        )
        rejected = self.folder / "rejected.jsonl"
        with spooled(
            [prompts], rejected_path=rejected, batch_size=batch_size, canary=guard.canary
        ) as prepared:
            asked = run_record(run, spec, prepared, datetime.now(UTC))
            return enqueue(
                self.ledger, self.blobs, self.hints, asked, prepared, lambda *_: None
            ).record

    def wait_finished(self, run: str, timeout_s: float = WAIT_S) -> None:
        def finished() -> bool:
            for worker in self.workers:
                code = worker.process.poll()
                assert code in (None, 0, -signal.SIGKILL), f"exit {code}:\n{worker.tail()}"
            return self.ledger.status(run).finished

        wait_until(finished, f"run {run} is finished", timeout_s)

    def wait_announced(self, times: int) -> None:
        """Block until every living worker has swept, looked at its work and announced it so often.

        What a worker would do of its own accord, it has had the time to do after a few of them.
        """

        def seen() -> dict[str, int]:
            rows = self.ledger.workers()
            living = [w.name for w in self.workers if w.process.poll() is None]
            return {name: rows[name]["seen_ms"] for name in living if name in rows}

        for _ in range(times):
            before = seen()
            wait_until(
                lambda b=before: all(seen().get(name) != at for name, at in b.items()),  # type: ignore[misc]
                "every worker has announced itself again",
            )

    def oracle(self, run: str) -> VerifyReport:
        """Every prompt exactly once, hashes right, no live lease, counters equal S3."""
        # Where a batch was made anew, a worker's next look renews the manifest.
        wait_until(lambda: self._proven(run), f"the manifest of {run} names what is done")
        report = verify(self.blobs, run)
        assert report.clean, (report.problems, report.missing)
        status = self.ledger.status(run)
        assert not status.leased
        assert status.pending == 0
        assert report.accepted + sum(report.rejected.values()) == report.prompts
        assert status.counters.get("prompts", 0) == report.prompts
        assert status.counters.get("accepted", 0) == report.accepted
        assert status.kept_bytes == 0
        return report

    def _proven(self, run: str) -> bool:
        """Whether there is no manifest, or none that names another object than the ledger."""
        done = {batch: ref.sha256 for batch, ref in self.ledger.done(run).items()}
        manifest = read_manifest(self.blobs, run)
        named = [] if manifest is None else manifest["objects"]
        return all(done.get(row["batch"]) == row["sha256"] for row in named)

    def assert_no_orphans(self) -> None:
        """Nothing that a worker started outlives it."""

        def left() -> list[psutil.Process]:
            return [p for p in self._family if p.is_running() and p.status() != "zombie"]

        wait_until(lambda: not left(), f"processes ended: {left()}")


def prompts_file(path: Path, count: int, turns: int = 1) -> Path:
    """`count` prompts of `turns` user turns each."""
    rows = (
        {
            "id": f"p{number}",
            "domain": ("coding", "general", "math")[number % 3],
            "messages": [
                {"role": "user", "content": f"What is {number} plus {turn}?"}
                for turn in range(turns)
            ],
        }
        for number in range(count)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def kept(fleet: FleetHarness, run: str) -> int:
    """Entries kept for the leased batches."""
    return sum(batch.kept for batch in fleet.ledger.status(run).leased)


def kept_prompts(fleet: FleetHarness, run: str) -> set[str]:
    """Hashes of the prompts whose generations are kept: nobody may ask for them again."""
    names = [batch.name for batch in fleet.ledger.batch_states(run) if batch.state != "done"]
    return {
        prompt_hash(generation.prompt_ids)
        for name in names
        for generation in fleet.ledger.kept(Lease(run, name, "", "", 0)).generations.values()
    }


def requests(stats: Path) -> Counter[str]:
    """How often each prompt was asked of the engines, by hash; their start-up probes apart."""
    rows = [json.loads(line) for line in stats.read_text().splitlines()]
    ours = [row for row in rows if row["rid"].startswith("dfq-") and row["event"] == "received"]
    return Counter(row["prompt"] for row in ours)
