"""`python -m tests.support.rehearsal FILE`: a prompt file to its end on emulated engines.

Real Redis, S3 and workers; only the engine is emulated. Prints counts, seconds and peak memory of
every part, and ends in the oracle.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import psutil

from dflashq.config import Settings
from tests.support.engine_emulator import emulated_profile
from tests.support.engine_emulator.launch import MODULE
from tests.support.fleet import FleetHarness
from tests.support.paths import TINY_MODEL as TINY
from tests.support.servers import own_servers, settings_for


@contextmanager
def servers(folder: Path) -> Iterator[Settings]:
    """Settings that lead to a Redis and an S3 of this rehearsal alone, which run meanwhile."""
    with own_servers(folder) as (redis, s3):
        yield settings_for(
            redis, s3, lock_dir=folder / "locks", state_dir=folder / "state", sweep_s=1.0
        )


class PeakMemory:
    """Samples the resident size of this process and of all below it; a context manager.

    `mb` is the largest size of one process in MiB, by the part of the fleet that it belongs to.
    """

    def __init__(self) -> None:
        self.mb: defaultdict[str, float] = defaultdict(float)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(0.5):
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                try:
                    name = _part(process.cmdline())
                    size = process.memory_info().rss / 2**20
                except psutil.NoSuchProcess:
                    continue
                self.mb[name] = max(self.mb[name], size)


def _part(command: list[str]) -> str:
    line = " ".join(command)
    for word, name in (
        ("valkey", "redis"),
        ("weed", "s3"),
        (MODULE, "emulated engine"),
        ("celery", "worker"),
    ):
        if word in line:
            return name
    return "enqueue and verify"


@click.command()
@click.argument("prompts", type=click.Path(exists=True, path_type=Path))
@click.option("--workers", default=1)
@click.option("--batch-size", default=1000)
@click.option("--slots", default=64)
@click.option("--token-ms", default=1.0)
@click.option("--lengths", default="lognormal:mean=200,sigma=0.8,cap=2000")
@click.option("--model-dir", type=click.Path(exists=True, path_type=Path), default=TINY)
def main(
    prompts: Path,
    workers: int,
    batch_size: int,
    slots: int,
    token_ms: float,
    lengths: str,
    model_dir: Path,
) -> None:
    """Run PROMPTS to the end on emulated engines and verify."""
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as name, servers(Path(name)) as settings:
        folder = Path(name)
        profile = emulated_profile(
            folder,
            model_dir=model_dir,
            slots=slots,
            token_ms=token_ms,
            lengths=lengths,
            context_length=65536,
        )
        with FleetHarness(settings, profile, folder) as fleet, PeakMemory() as peak:
            began = time.monotonic()
            record = fleet.enqueue("rehearsal", prompts, batch_size=batch_size)
            click.echo(
                f"enqueued: {record.prompts} prompts in {len(record.batches)} batches, "
                f"{time.monotonic() - began:.1f} s"
            )
            for number in range(workers):
                fleet.start(f"w{number}")
            began = time.monotonic()
            fleet.wait_finished("rehearsal", timeout_s=3600)
            seconds = time.monotonic() - began
            report = fleet.oracle("rehearsal")
            rejected = ", ".join(f"{n} {why}" for why, n in report.rejected.items()) or "none"
            click.echo(
                f"finished: {seconds:.1f} s, {report.output_tokens} tokens, "
                f"{report.output_tokens / seconds:.0f} tokens/s"
            )
            click.echo(f"verify clean: {report.accepted} accepted, rejected: {rejected}")
        for part, size in sorted(peak.mb.items()):
            click.echo(f"peak memory of {part}: {size:.0f} MiB")


if __name__ == "__main__":
    main()
