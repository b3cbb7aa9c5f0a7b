"""Settled prompts: their verdicts, and the rule that looks at a whole batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from dflashq.core.model import Checks, Generation, Verdict


@dataclass(frozen=True, slots=True)
class SettledPrompt:
    """A prompt that has its verdict, and what it counts.

    `slots` say where its generations are kept, in the order of its turns: nothing else of a long
    answer stays in memory. `outputs` are the short ones, whole, to be compared with those of other
    prompts; `retries` the draws that the ladder threw away.
    """

    index: int
    verdict: Verdict
    counts: dict[str, int]
    slots: tuple[int, ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    retries: tuple[dict[str, Any], ...] = ()

    @property
    def reason(self) -> str | None:
        """Why it was rejected; None when it was accepted."""
        return self.verdict.reason


def short_outputs(generations: list[Generation], checks: Checks) -> tuple[tuple[int, ...], ...]:
    """The generations that are short enough to be a stub that many prompts get."""
    if not checks.repeat_min:
        return ()
    return tuple(
        tuple(generation.output_array.tolist())
        for generation in generations
        if len(generation.output_ids) <= checks.repeat_max_tokens
    )


def reject_repeated(settled: list[SettledPrompt], checks: Checks) -> list[SettledPrompt]:
    """Reject as stubs the prompts whose thinking and answer many others got to the letter.

    Thinking about different prompts never comes out the same: an engine or a template that gives
    one short output to many is broken, though each looks like an answer.
    """
    prompts_with = Counter(output for one in settled for output in set(one.outputs))
    return [_judged_again(one, prompts_with, checks) for one in settled]


def _judged_again(
    one: SettledPrompt, prompts_with: Counter[tuple[int, ...]], checks: Checks
) -> SettledPrompt:
    most = max((prompts_with[output] for output in one.outputs), default=0)
    if one.reason is not None or not checks.repeat_min or most < checks.repeat_min:
        return one
    verdict = Verdict(
        "stub",
        f"{most} prompts of this batch got the same output of at most "
        f"{checks.repeat_max_tokens} ids, to the letter",
    )
    return replace(one, verdict=verdict)
