"""A prompt that its engine keeps failing on: held against what the same engine does for others."""

from __future__ import annotations

import time

from dflashq.core.errors import EngineError, EngineRequestError
from dflashq.engine.gate import Gate
from dflashq.stages.circuit_breaker import CircuitBreaker

TRIES = 5
# A server that is overloaded fails whoever comes too much; only a long series means the prompt.
OVERLOAD_TRIES, OVERLOAD = 20, frozenset({429, 503})
OTHERS = 3  # so many answers to other prompts meanwhile show that the engine works


class PromptFailureError(EngineError):
    """This engine failed on a prompt again and again while it answered other requests.

    Once may be this engine's doing: a second engine decides, or a second round where there is none.
    """


class PromptFailures:
    """The failures of one turn in this round, and what happened to other requests meanwhile."""

    def __init__(self, health: CircuitBreaker, gate: Gate) -> None:
        self._health, self._gate = health, gate
        self._count, self._overloads, self._sicknesses = 0, 0, health.sicknesses

    def note(self, exc: EngineError) -> None:
        """It failed once more. What hit every prompt meanwhile says nothing of this one."""
        health = self._health
        if not self._count or self._sicknesses != health.sicknesses:
            self._count, self._overloads, self._since_s = 0, 0, time.monotonic()
            self._sicknesses = health.sicknesses
            self._answered, self._failed = health.answered, health.failed - 1
        self._count += 1
        if isinstance(exc, EngineRequestError) and (exc.status in OVERLOAD or exc.retry_after_s):
            self._overloads += 1

    async def follow_prompt(self) -> bool:
        """Whether the prompt is to blame: more others are answered than fail, or a probe is.

        Sends a probe when nothing else is in flight.
        """
        health = self._health
        if self._count < TRIES or health.sick:
            return False
        answered = health.answered - self._answered
        others_failed = health.failed - self._failed - self._count
        tries = OVERLOAD_TRIES if self._overloads else TRIES
        if self._count >= tries and answered >= OTHERS and answered > others_failed:
            return True
        return self._gate.in_flight == 0 and await health.probe_answers()

    def error(self, last: EngineError) -> PromptFailureError:
        """What is told of it, with the server's words."""
        seconds = time.monotonic() - self._since_s
        return PromptFailureError(
            f"failed {self._count} times within {seconds:.0f} s while the engine answered others; "
            f"the last: {last}"
        )
