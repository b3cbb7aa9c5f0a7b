"""`dflashq bench`: the speed of an engine on a run's prompts, and the days that a run takes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflashq.cli.plan import plan_lines
from dflashq.cli.session import Session, json_option, pass_session, print_json, say
from dflashq.cli.text_views import columns
from dflashq.core.errors import UsageError
from dflashq.core.estimates.capacity import GpuPool, LognormalLengths, Plan
from dflashq.core.estimates.capacity import plan as planned

if TYPE_CHECKING:
    from dflashq.config import Settings
    from dflashq.engine.benchmark import Level
    from dflashq.engine.profiles import Profile


@dataclass(frozen=True, slots=True)
class Measurement:
    """One engine: its profile, its levels of concurrency, the best one, the plan of a run on it."""

    profile: str
    levels: list[Level]
    best: Level
    plan: Plan


def _levels(_ctx: click.Context, _param: click.Parameter, value: str) -> list[int]:
    try:
        levels = sorted({int(word) for word in value.split(",")})
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of numbers") from None
    if levels[0] < 1:
        raise click.BadParameter("at least one must be in flight")
    return levels


@click.command()
@click.argument("url", required=False, metavar="[ENGINE_URL]")
@click.option(
    "--profile", "profiles", multiple=True, help="Name or file; without URL it is started. Repeats."
)
@click.option("--prompts", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--concurrency", default="8,16,32,64", show_default=True, callback=_levels)
@click.option("--rounds", default=4, show_default=True, help="Prompts for each one in flight.")
@click.option("--run-prompts", type=int, help="Prompts of the whole run; those of FILE if unset.")
@click.option("--gpus", default=1, show_default=True, help="GPUs that the run gets.")
@click.option("--price", default=0.0, show_default=True, help="Dollars an hour of one GPU.")
@json_option
@pass_session
def bench(
    session: Session,
    url: str | None,
    profiles: tuple[str, ...],
    prompts: Path,
    concurrency: list[int],
    rounds: int,
    run_prompts: int | None,
    gpus: int,
    price: float,
    as_json: bool,
) -> None:
    """Measure an engine with your prompts, at several concurrencies, and pick one.

    ENGINE_URL is a running SGLang server; without it each --profile is started on this host in
    turn (DFLASHQ_GPU). The profile names the model folder, for its tokenizer, and the sampling.
    """
    settings = session.settings
    names = profiles or ((settings.profile,) if settings.profile else ())
    if not names or (url and len(names) > 1):
        raise UsageError("give one --profile for ENGINE_URL, or at least one to start")
    session.interrupted = "The engine that was started is stopped."
    measurements = []
    for name in names:
        levels, cap, count = _measure(settings, name, url, prompts, concurrency, rounds)
        measurements.append(_conclusion(name, levels, cap, run_prompts or count, gpus, price))
    if as_json:
        print_json(_as_json(measurements))
    else:
        click.echo("\n".join(line for each in measurements for line in _lines(each)))


def _measure(
    settings: Settings,
    name: str,
    url: str | None,
    file: Path,
    concurrency: list[int],
    rounds: int,
) -> tuple[list[Level], int, int]:
    """The measured levels, the limit of new tokens, and how many prompts the file has."""
    from dflashq.engine.benchmark import measure  # noqa: PLC0415
    from dflashq.engine.chat_renderer import ChatRenderer  # noqa: PLC0415
    from dflashq.engine.profiles import load_profile  # noqa: PLC0415 - seconds of imports
    from dflashq.prompts.reader import read_prompts  # noqa: PLC0415

    profile = load_profile(name, settings)
    renderer = ChatRenderer(profile.model.path)
    rows = (row.outcome.row for row in read_prompts(file))
    usable = (row for row in rows if row is not None)
    first = list(islice(usable, max(concurrency) * rounds))
    count = len(first) + sum(1 for _ in usable)
    ids = [
        renderer.render(_first_turn(row), row.get("tools"), thinking=profile.model.thinking)
        for row in first
    ]
    ends = renderer.markers().end_ids
    say(f"{name}: {len(ids)} prompts, concurrency {', '.join(map(str, concurrency))}")
    with _engine(settings, profile, url) as address:
        levels = asyncio.run(measure(address, ids, profile.sampling, ends, concurrency, rounds))
    return levels, profile.sampling.max_new_tokens, count


def _first_turn(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A conversation up to its first user turn."""
    messages: list[dict[str, Any]] = []
    for message in row["messages"]:
        messages.append(message)
        if message["role"] == "user":
            break
    return messages


@contextmanager
def _engine(settings: Settings, profile: Profile, url: str | None) -> Iterator[str]:
    """The address of a running server, or of one that is started for this, and checked."""
    if url is not None:
        yield url
        return
    from dflashq.engine.gpu_lock import GpuLock  # noqa: PLC0415
    from dflashq.engine.process import new_engine  # noqa: PLC0415
    from dflashq.engine.profile_match import check_server  # noqa: PLC0415 - seconds of imports

    lock = GpuLock(settings.lock_dir, settings.gpu)
    lock.acquire()
    engine = new_engine(profile, settings, 1)
    try:
        say(f"{profile.name}: starting")
        engine.start()
        report = engine.wait_ready(profile.launch.start_timeout_s, threading.Event())
        check_server(profile, report)
        yield engine.base_url
    finally:
        engine.stop(profile.launch.stop_grace_s)
        lock.release()


def _conclusion(
    name: str, levels: list[Level], cap: int, count: int, gpus: int, price: float
) -> Measurement:
    from dflashq.engine.benchmark import best_level  # noqa: PLC0415 - imported by now

    best = best_level(levels)
    lengths = LognormalLengths.of([n for level in levels for n in level.lengths], cap)
    gpu_pool = GpuPool(name, gpus, best.tokens_per_s, price, best.concurrency)
    return Measurement(name, levels, best, planned(count, lengths, [gpu_pool]))


def _row(level: Level) -> dict[str, Any]:
    return {name: value for name, value in asdict(level).items() if name != "lengths"}


def _as_json(measurements: list[Measurement]) -> dict[str, Any]:
    """`best` is what `dflashq plan` reads: the fastest of all."""
    fastest = max(measurements, key=lambda each: each.best.tokens_per_s)
    engines = [
        {
            "profile": each.profile,
            "levels": [_row(level) for level in each.levels],
            "best": _row(each.best),
            "plan": asdict(each.plan),
        }
        for each in measurements
    ]
    return {"best": {"profile": fastest.profile, **_row(fastest.best)}, "engines": engines}


def _lines(measurement: Measurement) -> list[str]:
    head = ("at once", "tokens/s", "accepted", "median", "P90", "retracted", "cut", "refused")
    rows: list[tuple[str, ...]] = [head]
    for level in measurement.levels:
        accepted = "-" if level.accept_length is None else f"{level.accept_length:.2f}"
        retracted = "-" if level.retracted is None else str(level.retracted)
        latency = (f"{level.latency_median_s:.1f} s", f"{level.latency_p90_s:.1f} s")
        counts = (retracted, str(level.cut), str(level.refused))
        row = (str(level.concurrency), f"{level.tokens_per_s:,.0f}", accepted, *latency, *counts)
        rows.append(row)
    return [
        f"{measurement.profile}",
        *columns(rows),
        "",
        f"Take {measurement.best.concurrency} at once: the least within 3 % of the fastest.",
        *plan_lines(measurement.plan)[-2:],
        "",
    ]
