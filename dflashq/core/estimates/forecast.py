"""How long a run still takes: from the lengths of its answers and the speed of its workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, quantiles, stdev

EARLY_BATCHES, EARLY_RATES = 4, 12


@dataclass(frozen=True, slots=True)
class Forecast:
    """Seconds left: the likely, and a range that four of five runs should end in.

    `tokens` are those still to be generated; `why` says what it was made from. `early`: little
    is known, and the range is wide.
    """

    left_s: float
    low_s: float
    high_s: float
    tokens: int
    early: bool
    why: str


@dataclass(frozen=True, slots=True)
class MeanLength:
    """Output tokens a prompt: the mean, and its standard error."""

    mean: float
    error: float
    samples: int


def lengths(batches: Sequence[tuple[int, int]]) -> MeanLength | None:
    """From (prompts, output tokens) of done batches; None when no prompt is settled."""
    prompts, tokens = sum(p for p, _ in batches), sum(t for _, t in batches)
    if not prompts or not tokens:
        return None
    means = [t / p for p, t in batches if p]
    spread = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else tokens / prompts
    return MeanLength(tokens / prompts, spread, len(means))


def mixed_mean(shares: Mapping[str, float], means: Mapping[str, float], fallback: float) -> float:
    """Tokens a prompt of what is left, when its domains are known: theirs, weighted by share."""
    total = sum(shares.values())
    if total <= 0:
        return fallback
    return sum(n * means.get(name, fallback) for name, n in shares.items()) / total


def forecast(
    left_prompts: int,
    known: MeanLength | None,
    rates: Sequence[float],
    left_mean: float | None = None,
) -> Forecast | None:
    """What is left of a run.

    `rates` are tokens per second, lately; zeros (an outage) count, since they come again.
    `left_mean` replaces the mean length where the mix of what is left is known. None when nothing
    can be told: no batch is done, or no token moves.
    """
    if left_prompts <= 0:
        return Forecast(0.0, 0.0, 0.0, 0, False, "every prompt is settled")
    rate = mean(rates) if rates else 0.0
    if known is None or rate <= 0:
        return None
    per_prompt = known.mean if left_mean is None else left_mean
    low_rate, high_rate = _band(rates)
    off = 1.3 * known.error
    tokens = left_prompts * per_prompt
    early = known.samples < EARLY_BATCHES or len(rates) < EARLY_RATES
    margin = 1.5 if early else 1.0
    low = left_prompts * max(per_prompt - off, per_prompt / 3) / high_rate / margin
    high = left_prompts * (per_prompt + off) / max(low_rate, rate / 10) * margin
    likely = tokens / rate
    return Forecast(
        likely, min(low, likely), max(high, likely), round(tokens), early, _why(known, rates)
    )


def _band(rates: Sequence[float]) -> tuple[float, float]:
    """The mean speed of a slow and of a fast stretch: of the slowest and the fastest third."""
    if len(rates) < 3:
        return mean(rates), mean(rates)
    low, high = quantiles(rates, n=3)
    slow = [r for r in rates if r <= low]
    fast = [r for r in rates if r >= high]
    return (mean(slow) + median(rates)) / 2, (mean(fast) + median(rates)) / 2


def _why(known: MeanLength, rates: Sequence[float]) -> str:
    batches = f"{known.samples:,} done batch{'' if known.samples == 1 else 'es'}"
    return f"{known.mean:,.0f} tokens a prompt over {batches}, {mean(rates):,.0f} tokens/s lately"
