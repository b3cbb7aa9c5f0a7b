"""How long a run still takes: from the lengths of its answers and the speed of its workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, quantiles, stdev

EARLY_BATCHES, EARLY_RATES = 4, 12


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds left, with the range (`low_s` to `high_s`) in which four of five runs should end.

    `tokens` are those still to be generated; `why` names the numbers behind the forecast. `early`:
    few batches or rates are known, so the range is wide.
    """

    left_s: float
    low_s: float
    high_s: float
    tokens: int
    early: bool
    why: str


@dataclass(frozen=True, slots=True)
class MeanLength:
    """Output tokens a prompt: the mean and its standard error over `samples` batches."""

    mean: float
    error: float
    samples: int


def lengths(batches: Sequence[tuple[int, int]]) -> MeanLength | None:
    """From (prompts, output tokens) of done batches; None when no prompt is settled."""
    prompts = sum(count for count, _ in batches)
    tokens = sum(generated for _, generated in batches)
    if not prompts or not tokens:
        return None
    means = [generated / count for count, generated in batches if count]
    spread = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else tokens / prompts
    return MeanLength(tokens / prompts, spread, len(means))


def mixed_mean(shares: Mapping[str, float], means: Mapping[str, float], fallback: float) -> float:
    """Mean tokens a prompt of what is left: the means of its domains, weighted by their shares.

    A domain without a mean counts with `fallback`, which is also the result without shares.
    """
    total = sum(shares.values())
    if total <= 0:
        return fallback
    return sum(share * means.get(name, fallback) for name, share in shares.items()) / total


def forecast(
    left_prompts: int,
    known: MeanLength | None,
    rates: Sequence[float],
    left_mean: float | None = None,
) -> Forecast | None:
    """How long the prompts that are left will take; None while no batch is done or no token moves.

    `rates` are the latest rates in tokens per second; a zero (an outage) counts, since outages
    recur. `left_mean` replaces the mean length where the domains of what is left are known.
    """
    if left_prompts <= 0:
        return Forecast(0.0, 0.0, 0.0, 0, False, "every prompt is settled")
    rate = mean(rates) if rates else 0.0
    if known is None or rate <= 0:
        return None
    per_prompt = known.mean if left_mean is None else left_mean
    low_rate, high_rate = _band(rates)
    spread = 1.3 * known.error  # of a normal distribution, four in five lie within 1.3 errors
    tokens = left_prompts * per_prompt
    early = known.samples < EARLY_BATCHES or len(rates) < EARLY_RATES
    margin = 1.5 if early else 1.0
    low = left_prompts * max(per_prompt - spread, per_prompt / 3) / high_rate / margin
    high = left_prompts * (per_prompt + spread) / max(low_rate, rate / 10) * margin
    likely = tokens / rate
    return Forecast(
        likely, min(low, likely), max(high, likely), round(tokens), early, _why(known, rates)
    )


def _band(rates: Sequence[float]) -> tuple[float, float]:
    """A slow and a fast rate: the mean of each outer third, moved halfway to the median."""
    if len(rates) < 3:
        return mean(rates), mean(rates)
    low, high = quantiles(rates, n=3)
    slow = [rate for rate in rates if rate <= low]
    fast = [rate for rate in rates if rate >= high]
    return (mean(slow) + median(rates)) / 2, (mean(fast) + median(rates)) / 2


def _why(known: MeanLength, rates: Sequence[float]) -> str:
    batches = f"{known.samples:,} done batch{'' if known.samples == 1 else 'es'}"
    return f"{known.mean:,.0f} tokens a prompt over {batches}, {mean(rates):,.0f} tokens/s lately"
