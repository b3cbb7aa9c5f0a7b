"""Answering one prompt: every assistant turn in order, each judged in token space."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dflashq.core.backoff import delay_s
from dflashq.core.errors import (
    EngineDownError,
    EngineError,
    EngineRefusedError,
    EngineRequestError,
)
from dflashq.core.generations import checks
from dflashq.core.generations.answer_text import split_answer
from dflashq.core.generations.sample_rows import assistant_message
from dflashq.core.generations.segments import OutputSegments
from dflashq.core.model import (
    Checks,
    Generation,
    Message,
    Prompt,
    RunSpec,
    Sampling,
    Verdict,
    kept_slot,
)
from dflashq.core.token_ids import IdArray, id_array
from dflashq.engine.request import Conversation, request_ids
from dflashq.stages.attempt import Attempt
from dflashq.stages.engine_session import EngineSession
from dflashq.stages.generate.poison import PoisonTracker
from dflashq.stages.generate.prompt_failures import PromptFailures
from dflashq.stages.generate.settled_prompt import SettledPrompt, short_outputs

log = logging.getLogger(__name__)

BACKOFF_S, BACKOFF_CAP_S = 0.5, 30.0
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


class GeneratedTurn(NamedTuple):
    """One turn as it came from the engine, cut into its parts and judged; kept as `slot`."""

    slot: int
    generation: Generation
    output: OutputSegments
    verdict: Verdict


@dataclass(slots=True)
class TurnGenerator:
    """Answers the prompts of one attempt on one engine.

    `keep(index, slot, generation)` and `reject(index, verdict)` store what is finished; neither
    blocks. `openings` are prompts as their first turn asks them, by index, where already rendered.
    """

    session: EngineSession
    attempt: Attempt
    spec: RunSpec
    strikes: PoisonTracker
    keep: Callable[[int, int, Generation], None]
    reject: Callable[[int, Verdict], None]
    openings: dict[int, IdArray] = field(default_factory=dict)
    rids: Iterator[str] = field(default_factory=request_ids)

    async def settle(
        self, prompt: Prompt, kept: dict[int, Generation], verdict: Verdict | None
    ) -> SettledPrompt:
        """All turns of a prompt, from what was kept on; ends at the first rejected turn.

        PromptFailureError when this engine kept failing on it; whatever was finished is kept.
        """
        history: list[Message] = []
        drawn: list[GeneratedTurn] = []
        retries: list[dict[str, Any]] = []
        ended = False
        for message in prompt.messages:
            history.append(message)
            turn, over = len(drawn), _rejected(verdict)
            if message["role"] != "user" or ended or (turn not in kept and over):
                continue
            try:
                one = await self._climb(prompt, history, kept, retries, turn, ask=not over)
            except EngineRefusedError as exc:
                verdict, ended = Verdict(exc.reason, str(exc)), True
                self.reject(prompt.index, verdict)
                continue
            if one is None:
                ended = True
                continue
            drawn.append(one)
            verdict = verdict if over else one.verdict
            if len(drawn) < prompt.turns:
                history.append(self._said(one, prompt))
        return self._settled(prompt, drawn, verdict or Verdict(), retries)

    def _said(self, one: GeneratedTurn, prompt: Prompt) -> Message:
        """An answer as a message, for the turn after it."""
        return assistant_message(
            split_answer(one.output, self.session.renderer.decode, prompt.tools)
        )

    async def _climb(
        self,
        prompt: Prompt,
        history: list[Message],
        kept: dict[int, Generation],
        retries: list[dict[str, Any]],
        turn: int,
        *,
        ask: bool,
    ) -> GeneratedTurn | None:
        """One turn with its verdict; drawn again for each rung that the verdict asks for.

        None when a draw would have to be asked for and must not: it was refused before.
        """
        for rung in range(len(self.spec.ladder) + 1):
            sampling = self.spec.sampling_at(rung)
            generation = kept.get(kept_slot(turn, rung))
            if generation is None and not ask:
                return None
            try:
                if generation is None:
                    generation = await self._generate(prompt, history, sampling)
                    self.keep(prompt.index, kept_slot(turn, rung), generation)
            except EngineRefusedError as exc:
                if not self._retried(exc.reason, rung):
                    raise
                retries.append({"turn": turn, "reason": exc.reason, "detail": str(exc)})
                continue
            drawn = self._judge(kept_slot(turn, rung), generation, sampling)
            verdict = drawn.verdict
            if not self._retried(verdict.reason, rung):
                return drawn
            retries.append({"turn": turn, "reason": verdict.reason, "detail": verdict.detail})
        raise EngineError(f"prompt {prompt.index}: the ladder of run {self._batch} has no end")

    def _retried(self, reason: str | None, rung: int) -> bool:
        """Whether a draw with this reason is followed by another one."""
        ladder = self.spec.ladder
        return rung < len(ladder) and reason in ladder[rung].reasons

    def _judge(self, number: int, generation: Generation, sampling: Sampling) -> GeneratedTurn:
        output = OutputSegments(
            generation.output_array, self.session.markers, thinking=self.spec.thinking
        )
        verdict = checks.judge(
            generation, output, checks=self.spec.checks, max_new_tokens=sampling.max_new_tokens
        )
        return GeneratedTurn(number, generation, output, verdict)

    async def _generate(
        self, prompt: Prompt, history: list[Message], sampling: Sampling
    ) -> Generation:
        """One turn; waits out an engine that is down or fails on everything.

        PromptFailureError when it fails on this prompt and answers others.
        """
        failures = PromptFailures(self.session.health, self.session.gate)
        tries = 0
        while True:
            try:
                return await self._ask(prompt, history, sampling)
            except EngineRefusedError:
                raise
            except (EngineRequestError, EngineDownError) as exc:
                log.info("try again: batch=%s index=%d: %s", self._batch, prompt.index, exc)
                if isinstance(exc, EngineDownError) and exc.delivered:
                    self._blame(prompt)
                else:
                    failures.note(exc)
                    if await failures.follow_prompt():
                        raise failures.error(exc) from exc
                asked_s = exc.retry_after_s if isinstance(exc, EngineRequestError) else 0.0
            if self.session.health.sick:
                # The gate is closed, and opens for everybody at once when the engine is well.
                tries = 0
                continue
            tries += 1
            pause_s = delay_s(tries, BACKOFF_S, BACKOFF_CAP_S, jitter=random.uniform(0.5, 1.0))
            await asyncio.sleep(max(asked_s, pause_s))

    def _blame(self, prompt: Prompt) -> None:
        """Strike a prompt that the engine died with; refuse one that it died with alone."""
        alone = self.strikes.alone(prompt.index)
        deaths = self.strikes.add(prompt.index)
        log.warning("engine died: batch=%s index=%d strike=%d", self._batch, prompt.index, deaths)
        if alone:
            self.session.refund_deaths(deaths)
            raise PoisonError(
                f"the engine died {deaths} times while this prompt was in flight, the last time "
                "with nothing else in flight"
            )

    @property
    def _batch(self) -> str:
        return f"{self.attempt.lease.run}/{self.attempt.lease.batch}"

    async def _ask(self, prompt: Prompt, history: list[Message], sampling: Sampling) -> Generation:
        session = self.session
        await session.admit(self.attempt, alone=self.strikes.alone(prompt.index))
        try:
            ids = self._rendered(prompt, history)
            self._refuse_too_long(len(ids), sampling.max_new_tokens)
            engine_id = session.engine_id
            conversation = Conversation(list(history), prompt.tools, self.spec.thinking)
            with session.health.request((self._batch, prompt.index)):
                generation = await session.client.generate(
                    *(ids, sampling, next(self.rids), session.markers.end_ids),
                    conversation,
                    self._watch,
                )
            session.control = ids, conversation
        except EngineDownError as exc:
            # Keep the slot until a death is seen: whoever came next would meet the same dead
            # engine, alone with it, and be blamed. Without a death nobody is.
            exc.delivered = exc.delivered and await session.saw_death()
            raise
        finally:
            session.gate.leave()
        session.output_tokens += len(generation.output_ids)
        return generation.with_origin(engine_id, round(time.time(), 3))

    def _rendered(self, prompt: Prompt, history: list[Message]) -> list[int]:
        opening = self.openings.pop(prompt.index, None)
        if opening is not None:
            ids: list[int] = opening.tolist()
            return ids
        return self.session.renderer.render(history, prompt.tools, thinking=self.spec.thinking)

    def _watch(self, ids: list[int]) -> None:
        """LoopingError for a generation under way that has long been looping.

        Stricter than the verdict on a finished one: a table or a drawing repeats itself for a
        while, and then goes on.
        """
        strict = self._strict
        reach = max(strict.loop_window, strict.loop_max_period * strict.loop_min_repeats)
        if period := checks.loop_period(id_array(ids[-reach:]), strict):
            raise LoopingError(
                f"ended after {len(ids)} ids: the last {strict.loop_window} and more repeat a "
                f"piece of {period}"
            )

    @property
    def _strict(self) -> Checks:
        """The thresholds for a generation under way."""
        known = self.spec.checks
        return known.model_copy(
            update={
                "loop_window": EARLY * known.loop_window,
                "loop_min_repeats": EARLY * known.loop_min_repeats,
            }
        )

    def _refuse_too_long(self, prompt_tokens: int, wanted: int) -> None:
        limit = self.session.context_length
        if limit is not None and prompt_tokens + wanted > limit:
            raise TooLongError(
                f"{prompt_tokens} prompt tokens + {wanted} new ones exceed the engine's context "
                f"of {limit}"
            )

    def _settled(
        self,
        prompt: Prompt,
        drawn: list[GeneratedTurn],
        verdict: Verdict,
        retries: list[dict[str, Any]],
    ) -> SettledPrompt:
        generations = [one.generation for one in drawn]
        counts = {
            "generations": len(drawn),
            "prompt_tokens": sum(len(one.prompt_ids) for one in generations),
            "output_tokens": sum(len(one.output_ids) for one in generations),
            "reasoning_tokens": sum(one.output.reasoning_tokens for one in drawn),
        }
        outputs = short_outputs(generations, self.spec.checks) if self.thinks else ()
        slots = tuple(one.slot for one in drawn)
        return SettledPrompt(prompt.index, verdict, counts, slots, outputs, tuple(retries))

    @property
    def thinks(self) -> bool:
        """Whether answers begin with thinking; without it short ones may well be the same."""
        return self.spec.thinking and self.session.markers.think_close is not None


def _rejected(verdict: Verdict | None) -> bool:
    return verdict is not None and not verdict.accepted
