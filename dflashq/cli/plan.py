"""`dflashq plan`: days and dollars of a run on given GPUs."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import click

from dflashq.cli.session import json_option, print_json
from dflashq.cli.text_views import columns
from dflashq.core.estimates.capacity import GpuPool, LognormalLengths, Plan
from dflashq.core.estimates.capacity import plan as planned
from dflashq.core.estimates.rate import in_words
from dflashq.core.humanize import counted, dollars

FORM = "NAME:COUNT:TOKENS_PER_S:DOLLARS_PER_HOUR[:RUNNING]"
RUNNING = 64


class GpuParam(click.ParamType[GpuPool]):
    """GPUs of one kind; the rate may be a file that `dflashq bench --json` wrote."""

    name = FORM

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> GpuPool:
        if isinstance(value, GpuPool):
            return value
        kind, *rest = str(value).split(":")
        if not 3 <= len(rest) <= 4:
            self.fail(f"{value!r} is not {FORM}, as in rtxpro6000:8:1800:1.9", param, ctx)
        try:
            count, rate, dollars, *more = rest
            measured, running = _measured(rate)
            gpus = GpuPool(
                kind, int(count), measured, float(dollars), int(more[0]) if more else running
            )
        except (ValueError, OSError, KeyError, TypeError) as exc:
            self.fail(f"{value!r} is not {FORM}: {exc}", param, ctx)
        numbers = (gpus.tokens_per_s, gpus.dollars_per_hour)
        out_of_range = not all(map(math.isfinite, numbers)) or gpus.tokens_per_s <= 0
        if out_of_range or gpus.count < 1 or gpus.running < 1 or gpus.dollars_per_hour < 0:
            self.fail(f"{value!r} is not {FORM}: a number is out of its range", param, ctx)
        return gpus


def _measured(rate: str) -> tuple[float, int]:
    """(tokens/s, generations at once): as given, or from the file that `bench --json` wrote."""
    if not rate.endswith(".json"):
        return float(rate), RUNNING
    best = json.loads(Path(rate).read_bytes())["best"]
    return float(best["tokens_per_s"]), int(best["concurrency"])


@click.command()
@click.option("--prompts", type=click.IntRange(1), required=True, help="How many generations.")
@click.option("--mean", type=float, required=True, help="Mean output tokens.")
@click.option("--p90", type=float, required=True, help="90th percentile of output tokens.")
@click.option("--max-new-tokens", default=16384, show_default=True, type=click.IntRange(1))
@click.option("--gpu", "gpus", type=GpuParam(), multiple=True, required=True, help="May repeat.")
@json_option
def plan(
    prompts: int,
    mean: float,
    p90: float,
    max_new_tokens: int,
    gpus: tuple[GpuPool, ...],
    as_json: bool,
) -> None:
    """Estimate how long a run takes on these GPUs, and what it costs.

    Lengths are taken as lognormal, cut at --max-new-tokens. RUNNING is how many generations a GPU
    runs at once (64 unless given); TOKENS_PER_S may be a file that `dflashq bench --json` wrote.
    """
    estimate = planned(prompts, LognormalLengths.fit(mean, p90, max_new_tokens), gpus)
    if as_json:
        print_json(asdict(estimate))
    else:
        click.echo("\n".join(plan_lines(estimate)))


def plan_lines(estimate: Plan) -> list[str]:
    """The shares as a table, and the plan in sentences."""
    rows = [("GPUs", "number", "share", "prompts", "dollars")]
    rows += [
        (
            s.kind,
            str(s.count),
            f"{s.share:.0%}".replace("%", " %"),
            f"{s.prompts:,}",
            dollars(s.dollars),
        )
        for s in estimate.shares
    ]
    mean = estimate.tokens / estimate.prompts
    return [
        *columns(rows),
        "",
        f"{counted(estimate.prompts, 'prompt')}, "
        f"{estimate.tokens / 1e6:,.1f} million output tokens "
        f"({mean:,.0f} a prompt, {estimate.capped:.2%} cut at the limit): "
        f"{in_words(estimate.seconds)}, {dollars(estimate.dollars)}.",
        f"The tail counts: {in_words(estimate.tail_s)} from the last prompt's start to the end. "
        f"Tokens over rate alone would say {in_words(estimate.linear_s)}.",
    ]
