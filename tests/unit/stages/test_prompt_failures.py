"""When a failure is the prompt's: others are answered meanwhile, and not for want of room."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dflashq.core.errors import EngineRequestError
from dflashq.stages.generate.prompt_failures import OVERLOAD_TRIES, TRIES, PromptFailures

BROKEN = EngineRequestError("HTTP 500: x", status=500)


class Scene:
    """An engine's counts, a gate with others in flight, and one prompt that fails."""

    def __init__(self, *, in_flight: int = 9, probe: bool = True) -> None:
        async def probe_answers() -> bool:
            return probe

        self.health: Any = SimpleNamespace(
            sick="", sicknesses=0, answered=1000, failed=1000, probe_answers=probe_answers
        )
        self.gate: Any = SimpleNamespace(in_flight=in_flight)
        self.failures = PromptFailures(self.health, self.gate)

    def fail(self, times: int, exc: EngineRequestError = BROKEN) -> None:
        for _ in range(times):
            self.health.failed += 1
            self.failures.note(exc)

    def others(self, *, answered: int = 0, failed: int = 0) -> None:
        self.health.answered += answered
        self.health.failed += failed

    @property
    def blamed(self) -> bool:
        return asyncio.run(self.failures.follow_prompt())


def test_answers_to_others_meanwhile_show_that_it_is_the_prompt() -> None:
    scene = Scene()
    scene.fail(TRIES)
    assert not scene.blamed, "nobody was answered meanwhile"
    scene.others(answered=3)
    assert scene.blamed


def test_answers_before_its_first_failure_say_nothing() -> None:
    """While it waited at the gate, a hundred were answered: by an engine that was well then."""
    scene = Scene()
    scene.others(answered=100)
    scene.fail(TRIES)
    assert not scene.blamed


def test_where_more_fail_than_are_answered_nobody_is_blamed() -> None:
    scene = Scene()
    scene.fail(1)
    scene.others(answered=10, failed=11)
    scene.fail(TRIES)
    assert not scene.blamed
    scene.others(answered=2)
    assert scene.blamed


@pytest.mark.parametrize(
    "exc",
    [
        EngineRequestError("HTTP 503: busy", status=503),
        EngineRequestError("HTTP 429: slow", status=429),
        EngineRequestError("HTTP 500: later", status=500, retry_after_s=1.0),
    ],
)
def test_an_overloaded_server_blames_nobody_soon(exc: EngineRequestError) -> None:
    """It answers as many as it can, and fails whoever else comes: 92 of 120 were rejected."""
    scene = Scene()
    scene.fail(1, exc)
    scene.others(answered=100)
    scene.fail(OVERLOAD_TRIES - 2, exc)
    assert not scene.blamed
    scene.fail(1, exc)
    assert scene.blamed


def test_alone_in_flight_a_probe_decides() -> None:
    scene = Scene(in_flight=0)
    scene.fail(TRIES - 1)
    assert not scene.blamed
    scene.fail(1)
    assert scene.blamed
    other = Scene(in_flight=0, probe=False)
    other.fail(TRIES)
    assert not other.blamed


def test_a_sickness_begins_the_count_anew() -> None:
    scene = Scene()
    scene.fail(TRIES)
    scene.health.sicknesses += 1
    scene.others(answered=50)
    scene.fail(1)
    assert not scene.blamed
    scene.health.sick = "it errs only"
    scene.fail(TRIES)
    scene.others(answered=50)
    assert not scene.blamed
