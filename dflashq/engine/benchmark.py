"""Measuring an engine with prompts of a run: one level of concurrency after another."""

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
# A larger concurrency must earn its longer tail and its memory.
WITHIN = 0.97
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Level:
    """What one concurrency gave. Times in seconds; `lengths` are output tokens, one an answer.

    `tokens_per_s` is of the time while as many as that ran; `accept_length` is None without
    speculation, `retracted` None when the engine does not count it.
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
    """What is under way in one level."""

    left: Iterator[list[int]]
    rids: Iterator[str] = field(default_factory=request_ids)
    done: list[Generation] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    refused: int = 0
    drained_s: float | None = None
    decoded: float | None = None


async def sweep(
    url: str,
    prompts: Sequence[list[int]],
    sampling: Sampling,
    end_ids: frozenset[int],
    levels: Sequence[int],
    rounds: int,
) -> list[Level]:
    """Every concurrency of `levels`, with `rounds` times as many prompts each.

    Prompts are repeated when they run out. EngineDownError and EngineError when the engine does
    not serve; single refusals are counted.
    """
    found = []
    async with SGLangClient(url) as client:
        supply = itertools.cycle(prompts)
        await _run(client, list(itertools.islice(supply, WARM_UP)), sampling, end_ids, WARM_UP)
        for level in levels:
            batch = list(itertools.islice(supply, level * rounds))
            log.info("measuring %d at once with %d prompts", level, len(batch))
            found.append(await _run(client, batch, sampling, end_ids, level))
    return found


def pick(levels: Sequence[Level]) -> Level:
    """The least concurrency that is within 3 % of the fastest."""
    fastest = max(level.tokens_per_s for level in levels)
    fit = [level for level in levels if level.tokens_per_s >= WITHIN * fastest]
    return min(fit, key=lambda level: level.concurrency)


async def _run(
    client: SGLangClient,
    prompts: list[list[int]],
    sampling: Sampling,
    end_ids: frozenset[int],
    concurrency: int,
) -> Level:
    before = await _metrics(client)
    tally = _Tally(iter(prompts))
    began = time.monotonic()
    await asyncio.gather(*(_ask_all(client, tally, sampling, end_ids) for _ in range(concurrency)))
    whole_s = time.monotonic() - began
    if not tally.done:
        raise EngineError(f"the engine refused all of {len(prompts)} prompts: nothing was measured")
    after = await _metrics(client)
    lengths = tuple(len(one.output_ids) for one in tally.done)
    return Level(
        concurrency=concurrency,
        generations=len(lengths),
        refused=tally.refused,
        tokens_per_s=_rate(tally, before.get(DECODED), began, whole_s, sum(lengths)),
        accept_length=_accepted(tally.done),
        latency_median_s=median(tally.times),
        latency_p90_s=quantiles(tally.times, n=10)[-1] if len(tally.times) > 1 else tally.times[0],
        retracted=round(after[RETRACTED] - before.get(RETRACTED, 0))
        if RETRACTED in after
        else None,
        cut=sum(one.finish_reason == "length" for one in tally.done),
        lengths=lengths,
    )


async def _ask_all(
    client: SGLangClient, tally: _Tally, sampling: Sampling, end_ids: frozenset[int]
) -> None:
    """One stream of prompts, one after another; the first that finds none left reads the clock."""
    for ids in tally.left:
        began = time.monotonic()
        try:
            tally.done.append(await client.generate(ids, sampling, next(tally.rids), end_ids))
        except (EngineRefusedError, EngineRequestError) as exc:
            log.warning("not counted: %s", exc)
            tally.refused += 1
            continue
        tally.times.append(time.monotonic() - began)
    if tally.drained_s is None:
        tally.drained_s = time.monotonic()
        tally.decoded = (await _metrics(client)).get(DECODED)


def _rate(tally: _Tally, decoded: float | None, began: float, whole_s: float, tokens: int) -> float:
    """Tokens per second until nothing was left to admit; of the whole when nobody counts them."""
    if tally.drained_s is not None and tally.decoded is not None and decoded is not None:
        made, full_s = tally.decoded - decoded, tally.drained_s - began
        if made > 0 and full_s > 0:
            return made / full_s
    return tokens / whole_s


def _accepted(done: Sequence[Generation]) -> float | None:
    """Tokens per verification, over all answers."""
    known = [(len(g.output_ids), g.spec_accept_length) for g in done if g.spec_accept_length]
    steps = sum(tokens / accepted for tokens, accepted in known)
    return sum(tokens for tokens, _ in known) / steps if steps else None


async def _metrics(client: SGLangClient) -> dict[str, float]:
    """Empty when the server was started without them."""
    try:
        return await client.metrics()
    except EngineError:
        return {}
