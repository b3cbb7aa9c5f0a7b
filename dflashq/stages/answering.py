"""Answering one prompt: every assistant turn in order, each judged in token space."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

from dflashq.core import checks, codec
from dflashq.core.answer import split_answer
from dflashq.core.errors import (
    EngineDownError,
    EngineError,
    EngineRefusedError,
    EngineTransientError,
)
from dflashq.core.model import Generation, Message, Prompt, RunSpec, Sampling, Verdict, slot
from dflashq.core.sample import assistant_message, rejected_row, sample_row
from dflashq.engine.client import Conversation
from dflashq.stages.attempt import Attempt
from dflashq.stages.settled import Settled, short_outputs
from dflashq.stages.station import Station
from dflashq.stages.strikes import Strikes

log = logging.getLogger(__name__)

TRANSIENT_TRIES = 6
BACKOFF_S, BACKOFF_CAP_S = 0.5, 10.0
EARLY = 4  # so many times the length of a loop in a finished answer ends one under way


class TooLongError(EngineRefusedError):
    """Prompt and answer together do not fit the engine's context; it was not asked."""

    reason = "too_long"


class LoopingError(EngineRefusedError):
    """This generation ran in circles for so long that it was ended before its time."""

    reason = "looping"


class PoisonError(EngineRefusedError):
    """This prompt, alone in flight, brought the engine down."""

    reason = "engine_crash"


@dataclass(slots=True)
class Answering:
    """Answers the prompts of one attempt on one engine.

    `keep(index, slot, generation)` and `reject(index, verdict)` store what is finished; neither
    blocks.
    """

    station: Station
    attempt: Attempt
    spec: RunSpec
    strikes: Strikes
    keep: Callable[[int, int, Generation], None]
    reject: Callable[[int, Verdict], None]

    async def settle(
        self, prompt: Prompt, kept: dict[int, Generation], verdict: Verdict | None
    ) -> Settled:
        """All turns of a prompt, from what was kept on; ends at the first rejected turn.

        EngineError when the engine kept failing on it; whatever was finished is kept.
        """
        history: list[Message] = []
        generations: list[Generation] = []
        retries: list[dict[str, Any]] = []
        reasoning = 0
        for message in prompt.messages:
            history.append(message)
            turn = len(generations)
            if message["role"] != "user" or (turn not in kept and _rejected(verdict)):
                continue
            try:
                generation, found = await self._climb(prompt, history, kept, retries, turn)
            except EngineRefusedError as exc:
                verdict = Verdict(exc.reason, str(exc))
                self.reject(prompt.index, verdict)
                continue
            generations.append(generation)
            if _rejected(verdict):
                continue
            verdict = found
            parts = split_answer(
                generation.output_ids,
                self.station.renderer.decode,
                self.station.markers,
                thinking=self.spec.thinking,
                tools=prompt.tools,
            )
            reasoning += parts.reasoning_tokens
            history.append(assistant_message(parts))
        row = sample_row(prompt, history, generations, reasoning, self.attempt.number, retries)
        return self._settled(row, generations, verdict or Verdict())

    async def _climb(
        self,
        prompt: Prompt,
        history: list[Message],
        kept: dict[int, Generation],
        retries: list[dict[str, Any]],
        turn: int,
    ) -> tuple[Generation, Verdict]:
        """One turn with its verdict; drawn again for each rung that the verdict asks for."""
        for rung in range(len(self.spec.ladder) + 1):
            sampling = self.spec.sampling_at(rung)
            generation = kept.get(slot(turn, rung))
            try:
                if generation is None:
                    generation = await self._generate(prompt, history, sampling)
                    self.keep(prompt.index, slot(turn, rung), generation)
            except EngineRefusedError as exc:
                if not self._retried(exc.reason, rung):
                    raise
                retries.append({"turn": turn, "reason": exc.reason, "detail": str(exc)})
                continue
            verdict = self._judge(generation, sampling)
            if not self._retried(verdict.reason, rung):
                return generation, verdict
            retries.append({"turn": turn, "reason": verdict.reason, "detail": verdict.detail})
        raise EngineError(f"prompt {prompt.index}: the ladder of run {self._batch} has no end")

    def _retried(self, reason: str | None, rung: int) -> bool:
        """Whether a draw with this reason is followed by another one."""
        ladder = self.spec.ladder
        return rung < len(ladder) and reason in ladder[rung].reasons

    def _judge(self, generation: Generation, sampling: Sampling) -> Verdict:
        return checks.judge(
            generation,
            checks=self.spec.checks,
            max_new_tokens=sampling.max_new_tokens,
            markers=self.station.markers,
            thinking=self.spec.thinking,
        )

    async def _generate(
        self, prompt: Prompt, history: list[Message], sampling: Sampling
    ) -> Generation:
        """One turn; waits out an engine that is down, retries what may pass."""
        failures, pause = 0, BACKOFF_S
        while True:
            try:
                return await self._ask(prompt, history, sampling)
            except EngineRefusedError:
                raise
            except EngineDownError as exc:
                log.debug("engine down: batch=%s index=%d: %s", self._batch, prompt.index, exc)
                await self._blame(prompt, exc)
            except EngineTransientError as exc:
                failures += 1
                log.warning("try again: batch=%s index=%d: %s", self._batch, prompt.index, exc)
                if failures >= TRANSIENT_TRIES:
                    raise EngineError(
                        f"the engine failed {failures} times on prompt {prompt.index}: {exc}"
                    ) from exc
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, BACKOFF_CAP_S)

    async def _blame(self, prompt: Prompt, exc: EngineDownError) -> None:
        """Strike a prompt that the engine died with; refuse one that it died with alone."""
        if not exc.delivered:
            return
        alone = self.strikes.alone(prompt.index)
        deaths = self.strikes.add(prompt.index)
        log.warning("engine died: batch=%s index=%d strike=%d", self._batch, prompt.index, deaths)
        if alone:
            self.station.forgive(deaths)
            raise PoisonError(
                f"the engine died {deaths} times while this prompt was in flight, the last time "
                "with nothing else in flight"
            )

    @property
    def _batch(self) -> str:
        return f"{self.attempt.lease.run}/{self.attempt.lease.batch}"

    async def _ask(self, prompt: Prompt, history: list[Message], sampling: Sampling) -> Generation:
        alone = self.strikes.alone(prompt.index)
        async with self.station.admitted(self.attempt, alone=alone), self._holding_through_death():
            ids = self.station.renderer.render(history, prompt.tools, thinking=self.spec.thinking)
            self._refuse_too_long(len(ids), sampling.max_new_tokens)
            engine_id = self.station.engine_id
            generation = await self.station.client.generate(
                ids,
                sampling,
                f"dfq-{secrets.token_hex(16)}",
                self.station.markers.end_ids,
                Conversation(list(history), prompt.tools, self.spec.thinking),
                self._watch,
            )
        self.station.output_tokens += len(generation.output_ids)
        return replace(generation, engine=engine_id, at=round(time.time(), 3))

    @contextlib.asynccontextmanager
    async def _holding_through_death(self) -> AsyncIterator[None]:
        """Keep the slot until a death is seen: whoever came next would meet the same dead engine,
        alone with it, and be blamed. Without a death nobody is (`delivered` becomes False).
        """
        try:
            yield
        except EngineDownError as exc:
            exc.delivered = exc.delivered and await self.station.saw_death()
            raise

    def _watch(self, ids: list[int]) -> None:
        """LoopingError for a generation under way that has long been looping.

        Stricter than the verdict on a finished one: a table or a drawing repeats itself for a
        while, and then goes on.
        """
        known = self.spec.checks
        strict = known.model_copy(
            update={
                "loop_window": EARLY * known.loop_window,
                "loop_min_repeats": EARLY * known.loop_min_repeats,
            }
        )
        if period := checks.loop_period(ids, strict):
            raise LoopingError(
                f"ended after {len(ids)} ids: the last {strict.loop_window} and more repeat a "
                f"piece of {period}"
            )

    def _refuse_too_long(self, prompt_tokens: int, wanted: int) -> None:
        limit = self.station.context_length
        if limit is not None and prompt_tokens + wanted > limit:
            raise TooLongError(
                f"{prompt_tokens} prompt tokens + {wanted} new ones exceed the engine's context "
                f"of {limit}"
            )

    def _settled(
        self, row: dict[str, Any], generations: list[Generation], verdict: Verdict
    ) -> Settled:
        counts = {
            "generations": len(generations),
            "prompt_tokens": row["usage"]["prompt_tokens"],
            "output_tokens": row["usage"]["completion_tokens"],
            "reasoning_tokens": row["usage"]["reasoning_tokens"],
        }
        if not verdict.accepted:
            row = rejected_row(row, verdict)
        outputs = short_outputs(generations, self.spec.checks) if self.thinks else ()
        return Settled(row["index"], verdict.reason, codec.encode_generated(row), counts, outputs)

    @property
    def thinks(self) -> bool:
        """Whether answers begin with thinking; without it short ones may well be the same."""
        return self.spec.thinking and self.station.markers.think_close is not None


def _rejected(verdict: Verdict | None) -> bool:
    return verdict is not None and not verdict.accepted
