"""How long a run takes and what it costs on given GPUs, the tail of long answers counted.

Pure arithmetic. Lengths are output tokens, times seconds, rates output tokens per second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, pstdev

from dflashq.core.errors import UsageError

NORMAL = NormalDist()
Z90 = NORMAL.inv_cdf(0.9)
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class LognormalLengths:
    """Lognormal lengths in tokens, cut at `cap`: close to the lengths of a thinking model."""

    mu: float
    sigma: float
    cap: int

    @classmethod
    def fit(cls, mean: float, p90: float, cap: int) -> LognormalLengths:
        """The lognormal with this mean and 90th percentile; UsageError when none has both."""
        ratio = p90 / mean if mean > 0 else 0.0
        if not 1 <= ratio <= math.exp(Z90**2 / 2):
            raise UsageError(
                f"no lognormal has mean {mean:g} and 90th percentile {p90:g}: the percentile must "
                f"be 1 to {math.exp(Z90**2 / 2):.2f} times the mean"
            )
        sigma = Z90 - math.sqrt(Z90**2 - 2 * math.log(ratio))
        return cls(math.log(mean) - sigma**2 / 2, sigma, cap)

    @classmethod
    def of(cls, lengths: Sequence[int], cap: int) -> LognormalLengths:
        """The lognormal of measured lengths (at least one, all above 0)."""
        logs = [math.log(length) for length in lengths]
        return cls(fmean(logs), pstdev(logs), cap)

    def moment(self, order: int) -> float:
        """E[X] or E[X^2] of a capped length."""
        if self.sigma == 0:
            return float(min(math.exp(self.mu), self.cap)) ** order
        s, m = self.sigma, self.mu
        cut = (math.log(self.cap) - m) / s
        below: float = math.exp(order * m + (order * s) ** 2 / 2) * NORMAL.cdf(cut - order * s)
        return below + float(self.cap) ** order * (1 - NORMAL.cdf(cut))

    @property
    def mean(self) -> float:
        """Mean tokens of an answer."""
        return self.moment(1)

    @property
    def capped(self) -> float:
        """The share of answers that reach the cap."""
        if self.sigma == 0:
            return float(math.exp(self.mu) >= self.cap)
        return 1 - NORMAL.cdf((math.log(self.cap) - self.mu) / self.sigma)

    def longest_left(self, running: int) -> float:
        """Tokens left to the last of `running` answers at the moment when no prompt waits any more.

        At a random moment, the tokens left to a running answer exceed t with probability
        E[(X-t)+]/E[X] (the residual life of a renewal process). The result is the t at which the
        expected number of answers above t, out of `running`, is 1.
        """
        low, high = 0.0, float(self.cap)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self._rest(middle) * running > 1 else (low, middle)
        return low

    @property
    def left(self) -> float:
        """Mean tokens left to a running answer."""
        return self.moment(2) / (2 * self.mean)

    def _rest(self, tokens: float) -> float:
        """The share of running answers that have more than `tokens` left."""
        if tokens >= self.cap:
            return 0.0
        if self.sigma == 0:
            return max(0.0, 1 - tokens / self.mean)
        # E[min(X, cap)] - E[min(X, tokens)], over the mean.
        return (
            self.mean - LognormalLengths(self.mu, self.sigma, max(1, round(tokens))).mean
        ) / self.mean


@dataclass(frozen=True, slots=True)
class GpuPool:
    """`count` GPUs of one kind; rate, price and answers at once (`running`) are for one of them."""

    kind: str
    count: int
    tokens_per_s: float
    dollars_per_hour: float = 0.0
    running: int = 64

    @property
    def rate(self) -> float:
        """Tokens per second of all of them."""
        return self.count * self.tokens_per_s

    @property
    def stream_per_s(self) -> float:
        """Tokens per second of one answer among `running`."""
        return self.tokens_per_s / self.running


@dataclass(frozen=True, slots=True)
class GpuShare:
    """The part of a run that one kind of GPU does, and what that costs."""

    kind: str
    count: int
    share: float
    prompts: int
    dollars: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A run on given GPUs. `linear_s` is tokens over rate; `seconds` includes `tail_s`.

    `capped` is the share of answers that reach the cap.
    """

    prompts: int
    tokens: float
    seconds: float
    tail_s: float
    linear_s: float
    dollars: float
    capped: float
    shares: tuple[GpuShare, ...]


def plan(prompts: int, lengths: LognormalLengths, gpus: Sequence[GpuPool]) -> Plan:
    """The time and cost of a run: GPUs run full until no prompt waits, then the last answers end.

    Every GPU is paid for until the end. UsageError without prompts or with a GPU without a rate.
    """
    rate = sum(pool.rate for pool in gpus)
    if prompts < 1 or rate <= 0 or any(pool.tokens_per_s <= 0 for pool in gpus):
        raise UsageError("a plan needs prompts, and GPUs with a rate above 0")
    tokens = prompts * lengths.mean
    tail = max(_tail_s(pool, prompts, lengths, rate) for pool in gpus)
    running = min(prompts, sum(pool.count * pool.running for pool in gpus))
    seconds = max(0.0, tokens - running * lengths.left) / rate + tail
    hours = seconds / HOUR_S
    shares = tuple(
        GpuShare(
            kind=pool.kind,
            count=pool.count,
            share=pool.rate / rate,
            prompts=round(prompts * pool.rate / rate),
            dollars=pool.count * pool.dollars_per_hour * hours,
        )
        for pool in gpus
    )
    dollars = sum(share.dollars for share in shares)
    linear = tokens / rate
    return Plan(prompts, tokens, seconds, tail, linear, dollars, lengths.capped, shares)


def _tail_s(pool: GpuPool, prompts: int, lengths: LognormalLengths, rate: float) -> float:
    """Seconds that the last answer of this kind of GPU takes once no prompt waits any more."""
    share = max(1, round(prompts * pool.rate / rate))
    running = min(pool.count * pool.running, share)
    return lengths.longest_left(running) / pool.stream_per_s
