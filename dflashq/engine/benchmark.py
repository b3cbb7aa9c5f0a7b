"""The throughput of an engine by concurrency, measured with the prompts of a run."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles

from dflashq.core.errors import EngineError, EngineRefusedError, EngineRequestError
from dflashq.core.model import Generation, Sampling
from dflashq.engine.dialects.sglang import SGLangClient
from dflashq.engine.request import request_ids

log = logging.getLogger(__name__)

DECODED = "sglang:realtime_tokens_total.decode"
RETRACTED = "sglang:num_retracted_requests_total"
# More concurrency costs memory and a longer tail, so it must gain more than this share.
TOLERANCE = 0.03
WARM_UP = 2  # prompts before the first level, and how many of them at once


@dataclass(frozen=True, slots=True)
class Level:
    """The measurement at one concurrency.

    `tokens_per_s` covers the time in which all slots were busy. `accept_length`: tokens per
    verification step, None without speculation. `retracted`: requests that the engine took back
    for lack of memory, None when it does not count them. `cut`: answers that reached the length
    limit. `lengths`: output tokens of each answer.
    """

    concurrency: int
    generations: int
    refused: int
    tokens_per_s: float
    accept_length: float | None
    latency_median_s: float
    latency_p90_s: float
    retracted: int | None
    cut: int
    lengths: tuple[int, ...] = field(repr=False)


@dataclass(slots=True)
class _Tally:
    """The state of the measurement at one concurrency."""

    prompts: Iterator[list[int]]
    rids: Iterator[str] = field(default_factory=request_ids)
    done: list[Generation] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    refused: int = 0
    drained_s: float | None = None
    decoded: float | None = None  # the counter DECODED when no prompt was left


async def measure(
    url: str,
    prompts: Sequence[list[int]],
    sampling: Sampling,
    end_ids: frozenset[int],
    levels: Sequence[int],
    rounds: int,
) -> list[Level]:
    """Measure every concurrency of `levels` in turn, each with `rounds` times as many prompts.

    `prompts`: token ids; they are repeated when they run out. Refused prompts are counted.
    EngineDownError when the engine stops answering, EngineError when it refuses every prompt of
    a level. Takes as long as the generations do.
    """
    measured = []
    async with SGLangClient(url) as client:
        supply = itertools.cycle(prompts)
        warm_up = list(itertools.islice(supply, WARM_UP))
        await _measure_level(client, warm_up, sampling, end_ids, WARM_UP)
        for level in levels:
            batch = list(itertools.islice(supply, level * rounds))
            log.info("measuring %d at once with %d prompts", level, len(batch))
            measured.append(await _measure_level(client, batch, sampling, end_ids, level))
    return measured


def best_level(levels: Sequence[Level]) -> Level:
    """The lowest concurrency whose throughput is within 3 % of the highest."""
    highest = max(level.tokens_per_s for level in levels)
    near = [level for level in levels if level.tokens_per_s >= (1 - TOLERANCE) * highest]
    return min(near, key=lambda level: level.concurrency)


async def _measure_level(
    client: SGLangClient,
    prompts: list[list[int]],
    sampling: Sampling,
    end_ids: frozenset[int],
    concurrency: int,
) -> Level:
    before = await _metrics(client)
    tally = _Tally(iter(prompts))
    began = time.monotonic()
    await asyncio.gather(
        *(_generate_all(client, tally, sampling, end_ids) for _ in range(concurrency))
    )
    whole_s = time.monotonic() - began
    if not tally.done:
        raise EngineError(f"the engine refused all of {len(prompts)} prompts: nothing was measured")
    after = await _metrics(client)
    lengths = tuple(len(generation.output_ids) for generation in tally.done)
    retracted = None
    if RETRACTED in after:
        retracted = round(after[RETRACTED] - before.get(RETRACTED, 0))
    times = tally.latencies_s
    return Level(
        concurrency=concurrency,
        generations=len(lengths),
        refused=tally.refused,
        tokens_per_s=_rate(tally, before.get(DECODED), began, whole_s, sum(lengths)),
        accept_length=_accept_length(tally.done),
        latency_median_s=median(times),
        latency_p90_s=quantiles(times, n=10)[-1] if len(times) > 1 else times[0],
        retracted=retracted,
        cut=sum(generation.finish_reason == "length" for generation in tally.done),
        lengths=lengths,
    )


async def _generate_all(
    client: SGLangClient, tally: _Tally, sampling: Sampling, end_ids: frozenset[int]
) -> None:
    """Send prompts one after another; the first task that has none left records the time."""
    for ids in tally.prompts:
        began = time.monotonic()
        try:
            tally.done.append(await client.generate(ids, sampling, next(tally.rids), end_ids))
        except (EngineRefusedError, EngineRequestError) as exc:
            log.warning("not counted: %s", exc)
            tally.refused += 1
            continue
        tally.latencies_s.append(time.monotonic() - began)
    if tally.drained_s is None:
        tally.drained_s = time.monotonic()
        tally.decoded = (await _metrics(client)).get(DECODED)


def _rate(tally: _Tally, decoded: float | None, began: float, whole_s: float, tokens: int) -> float:
    """Tokens per second until no prompt was left; over the whole time without the counter."""
    if tally.drained_s is not None and tally.decoded is not None and decoded is not None:
        busy_tokens, busy_s = tally.decoded - decoded, tally.drained_s - began
        if busy_tokens > 0 and busy_s > 0:
            return busy_tokens / busy_s
    return tokens / whole_s


def _accept_length(done: Sequence[Generation]) -> float | None:
    """Tokens per verification step over all answers; None without speculation."""
    known = [(len(g.output_ids), g.spec_accept_length) for g in done if g.spec_accept_length]
    steps = sum(tokens / accept_length for tokens, accept_length in known)
    return sum(tokens for tokens, _ in known) / steps if steps else None


async def _metrics(client: SGLangClient) -> dict[str, float]:
    """The engine's metrics; empty when the server was started without them."""
    try:
        return await client.metrics()
    except EngineError:
        return {}
