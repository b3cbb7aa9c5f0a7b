"""What a resumed prompt is asked again: nothing that was refused before."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dflashq.core.generations.special_tokens import SpecialTokens
from dflashq.core.model import (
    Checks,
    Generation,
    Message,
    Prompt,
    RetryStep,
    RunSpec,
    Verdict,
    kept_slot,
)
from dflashq.ledger import Lease
from dflashq.stages.attempt import Attempt
from dflashq.stages.generate.poison import PoisonTracker
from dflashq.stages.generate.settled_prompt import SettledPrompt
from dflashq.stages.generate.turns import TurnGenerator

END, CLOSE = 4, 3
MARKERS = SpecialTokens(frozenset({END}), 2, CLOSE, frozenset(), 1000)
SPEC = RunSpec(
    model="m",
    revision="r",
    queue="q",
    checks=Checks(min_answer_tokens=2),
    ladder=(RetryStep(reasons=("stub",)),),
)
STUB = Generation([1], [20, CLOSE, 30, END], "stop", END)
GOOD = Generation([1], [20, CLOSE, 30, 31, END], "stop", END)
CRASHED = Verdict("engine_crash", "it died twice")


class Station:
    """An engine that must not be asked."""

    markers = MARKERS
    renderer = SimpleNamespace(decode=lambda ids: "text")

    async def admit(self, attempt: Attempt, *, alone: bool) -> None:
        raise AssertionError("the engine was asked")


def settled(turns: int, kept: dict[int, Generation], verdict: Verdict | None) -> SettledPrompt:
    messages: list[Message] = [{"role": "user", "content": "?"} for _ in range(turns)]
    attempt = Attempt(Lease("run", "batch-000000", "1-a", "w", 0), 0.0)
    session: Any = Station()

    def never(*told: object) -> None:
        raise AssertionError(told)

    answering = TurnGenerator(session, attempt, SPEC, PoisonTracker({}, never), never, never)
    return asyncio.run(answering.settle(Prompt(5, "p", messages), kept, verdict))


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_retry_that_was_refused_is_not_asked_again(turns: int) -> None:
    one = settled(turns, {kept_slot(0, 0): STUB}, CRASHED)
    assert one.verdict == CRASHED
    assert one.slots == ()
    assert [retry["reason"] for retry in one.retries] == ["stub"]


@pytest.mark.parametrize("turns", [2, 3])
def test_answers_before_the_refused_turn_stay(turns: int) -> None:
    one = settled(turns, {kept_slot(0, 0): GOOD}, CRASHED)
    assert one.verdict == CRASHED
    assert one.slots == (kept_slot(0, 0),)
    assert one.counts["output_tokens"] == len(GOOD.output_ids)


def test_a_whole_answer_is_judged_without_the_engine() -> None:
    one = settled(1, {kept_slot(0, 0): STUB, kept_slot(0, 1): GOOD}, None)
    assert one.verdict == Verdict()
    assert one.slots == (kept_slot(0, 1),)
