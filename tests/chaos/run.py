"""`python -m tests.chaos`: a fleet under random, seeded faults; 0 lost, 0 doubled, 0 redone.

Real Redis, S3 and workers, each behind proxies of its own; only the engines are emulated.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from dflashq.core.model import RunRecord
from dflashq.operations.runs.backfill import revive
from tests.chaos.faults import FaultInjector
from tests.chaos.observed_leases import LeaseWatcher
from tests.chaos.prompts import expected_reasons, refused_marks, write_prompts
from tests.chaos.report import Outcome, account, find_regenerated, note_dead, recovery
from tests.chaos.twins import Twins
from tests.support.engine_emulator import emulated_profile
from tests.support.fault_fleet import FaultFleet, processes
from tests.support.fleet import wait_until
from tests.support.paths import TINY_MODEL as TINY
from tests.support.servers import own_servers, settings_for

BATCH, RUN_BATCHES, ENOUGH = 100, 4, 6
FINISH_S = 240.0
REFUSED = "refused prompts"


@contextmanager
def fault_fleet(folder: Path, *, refusing: bool) -> Iterator[FaultFleet]:
    """A fleet with servers of this chaos alone, without workers yet.

    `refusing`: the engines are behind a gateway that refuses some prompts for ever.
    """
    with own_servers(folder) as (redis, s3):
        settings = settings_for(
            redis,
            s3,
            lock_dir=folder / "locks",
            state_dir=folder / "state",
            lease_ttl_s=3.0,
            sweep_s=0.5,
            drain_grace_s=1.0,
        )
        stats = folder / "stats.jsonl"
        profile = emulated_profile(
            folder,
            model_dir=TINY,
            slots=8,
            token_ms=8,
            lengths="uniform:20:200",
            stats_file=stats,
            faults={"refused_marks": refused_marks(TINY)} if refusing else None,
        )
        with FaultFleet(settings, profile, folder, redis, stats) as fleet:
            yield fleet


class RunFeed:
    """Enqueues runs one after the other, so that there is always something to do."""

    def __init__(self, fleet: FaultFleet, watcher: LeaseWatcher, *, refusing: bool) -> None:
        self._fault_fleet, self._watcher, self._refusing = fleet, watcher, refusing
        self.records: list[RunRecord] = []

    def top_up(self) -> None:
        """Enqueue another run when workers could take more batches than are left.

        No more than that: the time to the next lease of a lost batch shall say how fast the loss
        is found, not how long the other workers are busy.
        """
        statuses = [self._fault_fleet.ledger.status(name) for name in self.unfinished()]
        if sum(status.pending + len(status.leased) for status in statuses) >= ENOUGH:
            return
        run = f"chaos-{len(self.records):03d}"
        path = self._fault_fleet.folder / f"{run}.jsonl"
        write_prompts(path, run, BATCH * RUN_BATCHES)
        record = self._fault_fleet.enqueue(run, path, batch_size=BATCH)
        self.records.append(record)
        self._watcher.runs[run] = [batch.name for batch in record.batches]

    def expected(self, record: RunRecord) -> dict[int, str]:
        """The reasons of the prompts of a run that must be rejected, by index."""
        return expected_reasons(record.prompts, refusing=self._refusing)

    def unfinished(self) -> list[str]:
        ledger = self._fault_fleet.ledger
        return [r.name for r in self.records if not ledger.status(r.name).finished]

    def revive_dead(self) -> int:
        """Give dead batches their attempts back, as a person would do; how many there were."""
        fleet = self._fault_fleet
        dead = [r.name for r in self.records if fleet.ledger.status(r.name).dead]
        return sum(len(revive(fleet.ledger, fleet.hints, run).revived) for run in dead)


def inject_faults(
    fleet: FaultFleet,
    feed: RunFeed,
    injector: FaultInjector,
    *,
    minutes: float,
    kills: int,
    echo_every_s: float = 30.0,
) -> None:
    """Inject faults for `minutes`, or until there were so many `kills`; then let the fleet finish.

    Blocks; AssertionError when the fleet does not finish its runs.
    """
    began = echoed = time.monotonic()
    while (injector.kills < kills) if kills else (time.monotonic() - began < minutes * 60):
        injector.tick()
        if injector.refusing:
            time.sleep(0.1)
            continue
        feed.top_up()
        if time.monotonic() - echoed > echo_every_s:
            echoed = time.monotonic()
            click.echo(
                f"{echoed - began:6.0f} s: {sum(injector.faults.values())} faults, "
                f"{injector.kills} kills, {len(feed.records)} runs, "
                f"{len(feed.unfinished())} of them unfinished"
            )
        time.sleep(0.1)
    injector.end_all()

    def finished() -> bool:
        injector.tick(harm=False)
        return not feed.unfinished()

    wait_until(finished, "the fleet has finished its runs", FINISH_S)


def verify_runs(
    fleet: FaultFleet, feed: RunFeed, watcher: LeaseWatcher, outcome: Outcome
) -> Outcome:
    """Add the oracle's verdict on every run, and what the engines say about their requests."""
    batch_of: dict[tuple[str, str], str] = {}
    for record in feed.records:
        batches = account(fleet, record, feed.expected(record), outcome)
        batch_of |= {(record.name, prompt): batch for prompt, batch in batches.items()}
    find_regenerated(fleet.stats, watcher.observed, batch_of, outcome)
    return outcome


def stop_all(fleet: FaultFleet, outcome: Outcome) -> None:
    """Stop every worker; a problem when one does not exit with 0, or leaves a process behind."""
    for worker in fleet.workers:
        code = worker.stop(60)
        if code != 0:
            outcome.problems.append(f"{worker.name} ended with {code} after the chaos")
    left = processes(fleet.folder)
    if left:
        outcome.problems.append(f"{len(left)} processes are left: {left}")


def print_report(
    outcome: Outcome, injector: FaultInjector, twins: Twins, watcher: LeaseWatcher, revived: int
) -> None:
    """Print what was done and what became of it; the last line is the summary."""
    for name, count in sorted(injector.faults.items()):
        click.echo(f"{count:5d}  {name}")
    ends = ", ".join(f"{n} x {code}" for code, n in sorted(twins.exits.items())) or "none"
    click.echo(f"exits of twins by code: {ends}")
    codes = ", ".join(f"{n} x {code}" for code, n in sorted(injector.exits.items())) or "none"
    click.echo(f"exits of workers by code: {codes}")
    for line in recovery(watcher.observed):
        click.echo(f"recovery: {line}")
    click.echo(
        f"seen kept: {len(watcher.observed.kept)} generations "
        f"in {watcher.observed.samples} samples; "
        f"refused prompts rejected: {outcome.refused}; "
        f"innocents rejected as engine_crash: {outcome.crashed}; dead batches revived: {revived}"
    )
    for line in outcome.dead:
        click.echo(f"dead: {line}")
    for line in [*outcome.problems, *outcome.again[:20]]:
        click.echo(f"wrong: {line}")
    click.echo(
        f"{'PASS' if outcome.clean else 'FAIL'}: {injector.kills} kills, "
        f"{sum(injector.faults.values())} faults, {outcome.batches} batches, {outcome.prompts} "
        f"prompts: {outcome.lost} lost, {outcome.doubled} doubled, "
        f"{outcome.regenerated} regenerated"
    )


def run_chaos(
    folder: Path,
    *,
    minutes: float,
    kills: int,
    seed: int,
    workers: int,
    without: frozenset[str] = frozenset(),
) -> Outcome:
    """One whole chaos in `folder`, without the faults named in `without`; prints its report."""
    names, refusing = [f"w{number}" for number in range(workers)], REFUSED not in without
    with fault_fleet(folder, refusing=refusing) as fleet, LeaseWatcher(fleet.settings) as watcher:
        for name in names:
            fleet.launch(name)
        fleet.bring_up(*names)
        feed, twins = RunFeed(fleet, watcher, refusing=refusing), Twins(fleet, watcher, TINY)
        injector = FaultInjector(fleet, names, watcher, twins, seed=seed, without=without)
        outcome, revived = Outcome(), 0
        try:
            inject_faults(fleet, feed, injector, minutes=minutes, kills=kills)
            for record in feed.records:
                note_dead(fleet, record.name, outcome)
            revived = feed.revive_dead()
            wait_until(lambda: not feed.unfinished(), "what was revived is done", FINISH_S)
        except AssertionError as exc:
            outcome.problems.append(str(exc))
            verify_runs(fleet, feed, watcher, outcome)
        else:
            verify_runs(fleet, feed, watcher, outcome)
            stop_all(fleet, outcome)
        outcome.problems += twins.problems
        print_report(outcome, injector, twins, watcher, revived)
        return outcome


@click.command()
@click.option("--minutes", default=10.0, help="How long to do harm.")
@click.option("--kills", default=0, help="Harm until so many kills instead.")
@click.option("--seed", default=0, help="Of the faults and their times.")
@click.option("--workers", default=4)
@click.option("--without", multiple=True, help="Leave a fault out, by its name in the report.")
@click.option("--keep", is_flag=True, help="Keep the folder with the logs.")
def main(
    minutes: float, kills: int, seed: int, workers: int, without: tuple[str, ...], keep: bool
) -> None:
    """Kill, stop and cut off a fleet at random, then prove that nothing came of it."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    click.echo(f"seed {seed}, {workers} workers, logs in {folder}")
    outcome = run_chaos(
        folder,
        minutes=minutes,
        kills=kills,
        seed=seed,
        workers=workers,
        without=frozenset(without),
    )
    if outcome.clean and not keep:
        shutil.rmtree(folder)
    sys.exit(0 if outcome.clean else 1)
