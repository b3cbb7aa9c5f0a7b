"""A prompt that its engine keeps failing on: held against what the same engine does for others."""

from __future__ import annotations

import time

from dflashq.core.errors import EngineError
from dflashq.engine.gate import Gate
from dflashq.stages.engine_health import EngineHealth

TRIES = 5
OTHERS = 3  # so many answers to other prompts meanwhile show that the engine works


class PromptFailureError(EngineError):
    """This engine failed on a prompt again and again while it answered other requests.

    Once may be this engine's doing: a second engine decides, or a second round where there is none.
    """


class PromptFailures:
    """The failures of one turn in this round, and what happened to other requests meanwhile."""

    def __init__(self, health: EngineHealth, gate: Gate) -> None:
        self._health, self._gate = health, gate
        self._begin()

    def _begin(self) -> None:
        self._count, self._since_s = 0, time.monotonic()
        self._answered, self._sicknesses = self._health.answered, self._health.sicknesses

    @property
    def count(self) -> int:
        """How often it has failed since the engine was last seen to fail on everything."""
        return self._count

    def note(self) -> None:
        """It failed once more."""
        if self._sicknesses != self._health.sicknesses:
            # What hit every prompt says nothing of this one.
            self._begin()
        self._count += 1

    async def follow_prompt(self) -> bool:
        """Whether the prompt is to blame: the engine answers others, or a probe when there is none.

        Sends a probe when nothing else is in flight.
        """
        health = self._health
        if self._count < TRIES or health.sick:
            return False
        if health.answered - self._answered >= OTHERS:
            return True
        if self._gate.in_flight or not await health.probe_answers():
            return False
        # A probe that is unlike a prompt proves nothing while other prompts fail as well.
        return health.probe_convinces or health.failing <= 1

    def error(self, last: EngineError) -> PromptFailureError:
        """What is told of it, with the server's words."""
        seconds = time.monotonic() - self._since_s
        return PromptFailureError(
            f"failed {self._count} times within {seconds:.0f} s while the engine answered others; "
            f"the last: {last}"
        )
