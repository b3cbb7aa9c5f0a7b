"""One output for many prompts is a stub, though each looks like an answer."""

from __future__ import annotations

from dflashq.core.model import Checks, Generation, Verdict
from dflashq.stages.generate.settled_prompt import SettledPrompt, reject_repeated, short_outputs

CHECKS = Checks(repeat_min=3, repeat_max_tokens=4)


def settled(index: int, *outputs: list[int], reason: str | None = None) -> SettledPrompt:
    generations = [Generation([1], output, "stop", output[-1]) for output in outputs]
    return SettledPrompt(index, Verdict(reason), {}, outputs=short_outputs(generations, CHECKS))


def test_the_same_short_output_of_three_prompts_is_rejected() -> None:
    batch = [settled(n, [5, 6, 2]) for n in range(3)] + [settled(3, [5, 7, 2])]
    judged = reject_repeated(batch, CHECKS)
    assert [one.reason for one in judged] == ["stub"] * 3 + [None]
    assert judged[0].verdict.reason == "stub"
    assert "3 prompts" in judged[0].verdict.detail


def test_long_outputs_and_too_few_prompts_are_left_alone() -> None:
    long = [settled(n, [5] * 4 + [2]) for n in range(5)]
    few = [settled(n, [5, 6, 2]) for n in range(2)]
    assert reject_repeated(long, CHECKS) == long
    assert reject_repeated(few, CHECKS) == few


def test_one_prompt_that_says_it_twice_counts_once() -> None:
    batch = [settled(0, [5, 2], [5, 2]), settled(1, [5, 2])]
    assert reject_repeated(batch, CHECKS) == batch


def test_a_rejected_prompt_keeps_its_reason() -> None:
    batch = [settled(n, [5, 2], reason="truncated") for n in range(3)]
    assert [one.reason for one in reject_repeated(batch, CHECKS)] == ["truncated"] * 3


def test_the_check_can_be_off() -> None:
    off = Checks(repeat_min=0)
    batch = [settled(n, [5, 2]) for n in range(9)]
    assert reject_repeated(batch, off) == batch
