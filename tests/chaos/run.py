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
from pydantic import SecretStr

from dflashq.config import Settings
from dflashq.core.model import RunRecord
from dflashq.embedded.redis import EmbeddedRedis
from dflashq.embedded.s3 import EmbeddedS3, free_s3_port
from dflashq.operations.runs.backfill import revive
from dflashq.system.ports import free_port
from tests.chaos.faults import Chaos
from tests.chaos.observed_leases import Watch
from tests.chaos.prompts import expected_reasons, refused_marks, write_prompts
from tests.chaos.report import Outcome, account, find_regenerated, note_dead, recovery
from tests.chaos.twins import Twins
from tests.support.engine_emulator import emulated_profile
from tests.support.fault_fleet import FaultFleet, processes
from tests.support.fleet import wait_until
from tests.support.paths import TINY_MODEL as TINY

PASSWORD, ACCESS, SECRET, BUCKET = "chaos", "chaos", "chaos-secret-0123", "chaos"
BATCH, RUN_BATCHES, ENOUGH = 100, 4, 6
FINISH_S = 240.0
REFUSED = "refused prompts"


@contextmanager
def fault_fleet(folder: Path, *, refusing: bool) -> Iterator[FaultFleet]:
    """Servers, settings and an engine profile of this chaos alone.

    `refusing`: the engines are behind a gateway that refuses some prompts for ever.
    """
    with (
        EmbeddedRedis(folder / "redis", free_port(), PASSWORD) as redis,
        EmbeddedS3(folder / "s3", free_s3_port(), ACCESS, SECRET, BUCKET) as s3,
    ):
        settings = Settings(
            _env_file=None,  # type: ignore[call-arg]
            redis_url=redis.url,
            redis_password=SecretStr(PASSWORD),
            s3_endpoint_url=s3.endpoint_url,
            s3_bucket=BUCKET,
            s3_access_key_id=SecretStr(ACCESS),
            s3_secret_access_key=SecretStr(SECRET),
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
        with FaultFleet(settings, profile, folder, redis, stats) as made:
            yield made


class Work:
    """Runs, one after the other, so that there is always something to do."""

    def __init__(self, place: FaultFleet, watch: Watch, *, refusing: bool) -> None:
        self._fault_fleet, self._watch, self._refusing = place, watch, refusing
        self.records: list[RunRecord] = []

    def top_up(self) -> None:
        """Another run while some worker could take another batch.

        No more than that, so that the time to the next lease says how fast a loss is found, and
        not how long the others are busy.
        """
        statuses = [self._fault_fleet.ledger.status(name) for name in self.unfinished()]
        if sum(status.pending + len(status.leased) for status in statuses) >= ENOUGH:
            return
        run = f"chaos-{len(self.records):03d}"
        path = self._fault_fleet.folder / f"{run}.jsonl"
        write_prompts(path, run, BATCH * RUN_BATCHES)
        record = self._fault_fleet.enqueue(run, path, batch_size=BATCH)
        self.records.append(record)
        self._watch.runs[run] = [batch.name for batch in record.batches]

    def expected(self, record: RunRecord) -> dict[int, str]:
        """The reasons of the prompts of a run that must be rejected, by index."""
        return expected_reasons(record.prompts, refusing=self._refusing)

    def unfinished(self) -> list[str]:
        ledger = self._fault_fleet.ledger
        return [r.name for r in self.records if not ledger.status(r.name).finished]

    def revive_dead(self) -> int:
        """Batches whose attempts the chaos has spent get them back, as a person would do."""
        place = self._fault_fleet
        dead = [r.name for r in self.records if place.ledger.status(r.name).dead]
        return sum(len(revive(place.ledger, place.hints, run).revived) for run in dead)


def storm(
    place: FaultFleet,
    work: Work,
    chaos: Chaos,
    *,
    minutes: float,
    kills: int,
    say_every_s: float = 30.0,
) -> None:
    """Harm until the minutes are over (or so many kills are done), then let the fleet finish."""
    began = said = time.monotonic()
    while (chaos.kills < kills) if kills else (time.monotonic() - began < minutes * 60):
        chaos.tick()
        if chaos.refusing:
            time.sleep(0.1)
            continue
        work.top_up()
        if time.monotonic() - said > say_every_s:
            said = time.monotonic()
            click.echo(
                f"{said - began:6.0f} s: {sum(chaos.faults.values())} faults, {chaos.kills} kills, "
                f"{len(work.records)} runs, {len(work.unfinished())} of them unfinished"
            )
        time.sleep(0.1)
    chaos.calm()

    def finished() -> bool:
        chaos.tick(harm=False)
        return not work.unfinished()

    wait_until(finished, "the fleet has finished its runs", FINISH_S)


def judge(place: FaultFleet, work: Work, watch: Watch, outcome: Outcome) -> Outcome:
    """The oracle on every run, and the engines' own count of requests."""
    batch_of: dict[tuple[str, str], str] = {}
    for record in work.records:
        found = account(place, record, work.expected(record), outcome)
        batch_of |= {(record.name, prompt): batch for prompt, batch in found.items()}
    find_regenerated(place.stats, watch.seen, batch_of, outcome)
    return outcome


def stop_all(place: FaultFleet, outcome: Outcome) -> None:
    """Every worker ends in order, and nothing is left of it."""
    for worker in place.workers:
        code = worker.stop(60)
        if code != 0:
            outcome.problems.append(f"{worker.name} ended with {code} after the chaos")
    left = processes(place.folder)
    if left:
        outcome.problems.append(f"{len(left)} processes are left: {left}")


def show(outcome: Outcome, chaos: Chaos, twins: Twins, watch: Watch, revived: int) -> None:
    """The report; its last line is the summary."""
    for name, count in sorted(chaos.faults.items()):
        click.echo(f"{count:5d}  {name}")
    ends = ", ".join(f"{n} x {code}" for code, n in sorted(twins.exits.items())) or "none"
    click.echo(f"exits of twins by code: {ends}")
    codes = ", ".join(f"{n} x {code}" for code, n in sorted(chaos.exits.items())) or "none"
    click.echo(f"exits of workers by code: {codes}")
    for line in recovery(watch.seen):
        click.echo(f"recovery: {line}")
    click.echo(
        f"seen kept: {len(watch.seen.kept)} generations in {watch.seen.samples} looks; "
        f"refused prompts rejected: {outcome.refused}; "
        f"innocents rejected as engine_crash: {outcome.crashed}; dead batches revived: {revived}"
    )
    for line in outcome.dead:
        click.echo(f"dead: {line}")
    for line in [*outcome.problems, *outcome.again[:20]]:
        click.echo(f"wrong: {line}")
    click.echo(
        f"{'PASS' if outcome.clean else 'FAIL'}: {chaos.kills} kills, "
        f"{sum(chaos.faults.values())} faults, {outcome.batches} batches, {outcome.prompts} "
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
    """The whole of it in `folder`, but for the faults named in `without`; prints its report."""
    names, refusing = [f"w{number}" for number in range(workers)], REFUSED not in without
    with fault_fleet(folder, refusing=refusing) as place, Watch(place.settings) as watch:
        for name in names:
            place.launch(name)
        place.bring_up(*names)
        work, twins = Work(place, watch, refusing=refusing), Twins(place, watch, TINY)
        chaos = Chaos(place, names, watch, twins, seed=seed, without=without)
        outcome, revived = Outcome(), 0
        try:
            storm(place, work, chaos, minutes=minutes, kills=kills)
            for record in work.records:
                note_dead(place, record.name, outcome)
            revived = work.revive_dead()
            wait_until(lambda: not work.unfinished(), "what was revived is done", FINISH_S)
        except AssertionError as exc:
            outcome.problems.append(str(exc))
            judge(place, work, watch, outcome)
        else:
            judge(place, work, watch, outcome)
            stop_all(place, outcome)
        outcome.problems += twins.problems
        show(outcome, chaos, twins, watch, revived)
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
