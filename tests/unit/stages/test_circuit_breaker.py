"""The circuit breaker over a worker's requests: closed gate, probe, one prompt, open gate."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from dflashq.core.errors import EngineError, EngineRefusedError, EngineRequestError
from dflashq.engine import failure_streak
from dflashq.engine.gate import Gate
from dflashq.stages import circuit_breaker
from dflashq.stages.circuit_breaker import ENGINE_DOWN, ENGINE_SICK, CircuitBreaker

LIMIT = 7


class Bench:
    """A gate, an engine that answers as it is told, and what became known."""

    def __init__(self, *, sick_s: float = 3600.0, ours: bool = False) -> None:
        self.gate = Gate(LIMIT)
        self.answers = False
        self.bug: Exception | None = None
        self.probes = 0
        self.restarts: list[str] = []
        self.errors: list[str] = []
        self.health = CircuitBreaker(
            self.gate,
            self.probe,
            self.errors.append,
            self.restarts.append if ours else None,
            sick_s,
        )

    async def probe(self) -> None:
        self.probes += 1
        if self.bug is not None:
            raise self.bug
        if not self.answers:
            raise EngineRequestError("HTTP 500: broken", status=500)

    def ask(self, sender: object = "x", error: EngineError | None = None) -> None:
        """One request that ends at once, with `error` or an answer."""
        with contextlib.suppress(EngineError), self.health.request(sender):
            if error is not None:
                raise error

    def fall_sick(self) -> None:
        for number in range(failure_streak.STREAK):
            self.ask(number, EngineRequestError("HTTP 403: no", status=403))
        assert self.gate.reasons == (ENGINE_SICK,)


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_streak, "LEAST_S", 0.0)
    monkeypatch.setattr(circuit_breaker, "PAUSE_S", 0.001)
    monkeypatch.setattr(circuit_breaker, "PAUSE_CAP_S", 0.002)


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_a_sick_engine_gets_no_prompt_until_a_probe_is_answered() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.fall_sick()
        await until(lambda: bench.health.sick)
        assert bench.health.sick_since_ms > 0
        await until(lambda: bench.probes > 3)
        assert bench.health.withdrawn
        assert bench.gate.reasons == (ENGINE_SICK,)
        bench.answers = True
        await until(lambda: not bench.gate.reasons)
        assert not bench.health.sick
        assert not bench.health.withdrawn

    asyncio.run(scene())


@pytest.mark.parametrize("bug", [AttributeError("list has no get"), OverflowError("too far")])
def test_a_probe_that_breaks_is_a_probe_that_fails(bug: Exception) -> None:
    """The recovery ended by it, and the gate stayed closed for ever without a word."""

    async def scene() -> None:
        bench = Bench()
        bench.bug = bug
        bench.fall_sick()
        await until(lambda: bench.probes > 2)
        assert type(bug).__name__ in bench.health.sick
        bench.bug, bench.answers = None, True
        await until(lambda: not bench.gate.reasons)

    asyncio.run(scene())


def test_what_hits_an_engine_that_is_down_is_left_to_its_supervisor() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.gate.close(ENGINE_DOWN)
        for number in range(10 * failure_streak.STREAK):
            bench.ask(number, EngineRequestError("HTTP 500: x", status=500))
        assert bench.gate.reasons == (ENGINE_DOWN,)
        assert bench.probes == 0

    asyncio.run(scene())


def test_prompts_that_fail_beside_one_that_is_answered_again_are_to_blame() -> None:
    """Where only refused prompts were left, they fell sick together and were never rejected."""

    async def scene() -> None:
        bench = Bench()
        bench.answers = True
        for _ in range(20):
            bench.fall_sick()
            await until(lambda: not bench.gate.reasons)
        assert (bench.health.sick, bench.health.sicknesses) == ("", 0)
        assert bench.gate.limit == LIMIT

    asyncio.run(scene())


def test_what_to_do_about_the_key_is_said_when_all_are_refused() -> None:
    async def scene() -> None:
        bench = Bench()
        bench.bug = EngineRequestError("HTTP 403: no", status=403)
        bench.fall_sick()
        await until(lambda: bench.health.sick)
        assert "HTTP 403: no. Set its key" in bench.health.sick

    asyncio.run(scene())


def test_an_engine_of_ours_is_started_again() -> None:
    async def scene() -> None:
        bench = Bench(sick_s=0.01, ours=True)
        bench.fall_sick()
        await until(lambda: bench.restarts)
        assert "HTTP" in bench.restarts[0]
        bench.health.reset()
        assert not bench.health.sick
        assert bench.gate.reasons == ()

    asyncio.run(scene())


def test_a_server_of_others_is_waited_for() -> None:
    async def scene() -> None:
        bench = Bench(sick_s=0.001)
        bench.fall_sick()
        await until(lambda: bench.probes > 10)
        assert bench.restarts == []

    asyncio.run(scene())


def test_retry_after_is_waited_for_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    real_sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses.append(seconds)
        await real_sleep(0)

    async def scene() -> None:
        bench = Bench()
        limited = EngineRequestError("HTTP 429: slow down", status=429, retry_after_s=30.0)
        monkeypatch.setattr(asyncio, "sleep", note)
        for number in range(failure_streak.LIMITED_STREAK):
            bench.ask(number, limited)
        assert bench.gate.reasons == (ENGINE_SICK,)
        while not pauses:
            await real_sleep(0)
        bench.health.reset()

    async def limited_probe(self: Bench) -> None:
        raise EngineRequestError("HTTP 429: slow down", status=429, retry_after_s=30.0)

    monkeypatch.setattr(Bench, "probe", limited_probe)
    asyncio.run(scene())
    assert pauses[0] == 30.0


def test_refusals_of_one_prompt_are_no_failures_of_the_engine() -> None:
    async def scene() -> None:
        bench = Bench()
        for number in range(100):
            bench.ask(number, EngineRefusedError("HTTP 400: too long"))
        assert not bench.health.sick
        assert bench.health.answered == 0

    asyncio.run(scene())


def test_failures_between_answers_are_no_sickness() -> None:
    async def scene() -> None:
        bench = Bench()
        for number, wrong in zip(range(200), itertools.cycle([True, False])):
            bench.ask(number, EngineRequestError("HTTP 500: x", status=500) if wrong else None)
        assert not bench.health.sick
        assert bench.health.answered == 100

    asyncio.run(scene())
