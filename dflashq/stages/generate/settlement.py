"""All prompts of an attempt to their verdicts; what one of them fails on stays its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from dflashq.core.errors import DflashqError, EngineError, is_panic
from dflashq.core.model import Generation, Prompt, RunRecord, Verdict
from dflashq.core.quality_guard import JudgedPrompt
from dflashq.core.token_ids import IdArray
from dflashq.ledger import Kept
from dflashq.ledger.kept_codec import (
    decode_generation,
    failure_entry,
    generation_field,
    verdict_entry,
)
from dflashq.ledger.models import Failure
from dflashq.stages.attempt import Attempt, HandOverError
from dflashq.stages.engine_session import EngineSession
from dflashq.stages.generate.accounting import count_generation, count_settled, is_new
from dflashq.stages.generate.poison import PoisonTracker
from dflashq.stages.generate.prompt_failures import PromptFailureError
from dflashq.stages.generate.rejection_guard import RejectionGuard
from dflashq.stages.generate.settled_prompt import SettledPrompt
from dflashq.stages.generate.turns import TurnGenerator

log = logging.getLogger(__name__)

ENGINE_ERROR, INTERNAL_ERROR = "engine_error", "internal_error"
SHOWN = 5


class _Outcome(NamedTuple):
    """What came of a round: verdicts, and the prompts that failed by themselves."""

    settled: list[SettledPrompt]
    failed: list[tuple[Prompt, BaseException]]


class Settlement:
    """Settles the prompts of one attempt; `run` belongs to the loop.

    `another_engine()` says, without blocking, whether a worker with another engine could take the
    batch.
    """

    def __init__(
        self,
        attempt: Attempt,
        session: EngineSession,
        rejection_guard: RejectionGuard,
        record: RunRecord,
        kept: Kept,
        openings: dict[int, IdArray],
        another_engine: Callable[[], bool],
    ) -> None:
        self._attempt, self._session, self._rejection_guard = attempt, session, rejection_guard
        self._kept, self._another_engine = kept, another_engine
        self._answering = TurnGenerator(
            session,
            attempt,
            record.spec,
            PoisonTracker(kept.strikes, self._keep_entry),
            self._keep,
            self._keep_verdict,
            openings,
        )
        self._kept_turns: dict[int, dict[int, Generation]] = {}
        for (index, turn), generation in kept.generations.items():
            self._kept_turns.setdefault(index, {})[turn] = generation

    async def run(self, prompts: list[Prompt]) -> list[SettledPrompt]:
        """All prompts at once; the gate decides how many are in flight.

        HandOverError when what is left should be tried on another engine, OSError and MemoryError
        for trouble of this machine, EngineError when nothing could be settled; what is finished is
        kept.
        """
        first = await self._round(prompts, self._kept_turns)
        if not first.settled and first.failed and all(_internal(exc) for _, exc in first.failed):
            raise _whole_batch(first.failed, len(prompts)) from first.failed[0][1]
        # What failed before, elsewhere or earlier, has had its second chance.
        final = [(p, exc) for p, exc in first.failed if p.index in self._kept.failures]
        unsure = [(p, exc) for p, exc in first.failed if p.index not in self._kept.failures]
        settled = first.settled
        if unsure:
            self._hand_over(unsure)
            again = [prompt for prompt, _ in unsure]
            second = await self._round(again, {p.index: self._finished_turns(p) for p in again})
            final += second.failed
            settled += second.settled
        return settled + [await self._reject(prompt, exc) for prompt, exc in final]

    async def _round(
        self, prompts: list[Prompt], turns: Mapping[int, dict[int, Generation]]
    ) -> _Outcome:
        """Settle each; `turns` are their finished generations by index and slot."""
        answers = await asyncio.gather(
            *(self._settle(prompt, turns.get(prompt.index, {})) for prompt in prompts),
            # One prompt's failure must not throw away what the others have in flight.
            return_exceptions=True,
        )
        outcome = _Outcome([], [])
        faults = []
        for prompt, answer in zip(prompts, answers, strict=True):
            if isinstance(answer, SettledPrompt):
                outcome.settled.append(answer)
            elif _own(answer):
                outcome.failed.append((prompt, answer))
            else:
                faults.append(answer)
        if faults:
            raise _fault(faults, len(prompts)) from faults[0]
        return outcome

    def _hand_over(self, failed: list[tuple[Prompt, BaseException]]) -> None:
        """HandOverError where another engine can try what failed on this one."""
        worker = self._attempt.lease.worker
        for prompt, exc in failed:
            log.warning(
                "prompt fails on this engine: run=%s batch=%s index=%d: %s",
                *(self._attempt.lease.run, self._attempt.lease.batch, prompt.index, exc),
            )
            self._keep_entry(*failure_entry(prompt.index, Failure(worker, _words(exc))))
        # What could not be kept would be generated again: a full ledger wants this batch committed.
        movable = not self._session.keeping.full and self._another_engine()
        if movable and any(not _internal(exc) for _, exc in failed):
            some = ", ".join(str(prompt.index) for prompt, _ in failed[:SHOWN])
            raise HandOverError(
                self._attempt.lease,
                f"index {some} failed here and is tried on another engine; the first "
                f"{_words(failed[0][1])}",
            )

    async def _reject(self, prompt: Prompt, exc: BaseException) -> SettledPrompt:
        """The verdict on a prompt that failed wherever it was tried; its finished turns stay."""
        worker, before = self._attempt.lease.worker, self._kept.failures.get(prompt.index)
        detail = f"on the engine of {worker} it {_words(exc)}"
        if before is not None and before.worker != worker:
            detail += f" Before, on the engine of {before.worker}, it {before.words}"
        else:
            detail += " It was tried in two rounds."
        verdict = Verdict(INTERNAL_ERROR if _internal(exc) else ENGINE_ERROR, detail)
        self._keep_verdict(prompt.index, verdict)
        try:
            settled = await self._answering.settle(prompt, self._finished_turns(prompt), verdict)
        except Exception:
            # What it failed on may be one of its turns: then it is rejected without them.
            log.exception("its finished turns cannot be judged: index=%d", prompt.index)
            settled = await self._answering.settle(prompt, {}, verdict)
        self._count(settled, 0)
        return settled

    def _finished_turns(self, prompt: Prompt) -> dict[int, Generation]:
        """Its generations by slot, from what is kept of this batch by now."""
        prefix = f"{prompt.index}:"
        slots = [
            int(field.removeprefix(prefix))
            for field in self._attempt.entries
            if field.startswith(prefix) and field.removeprefix(prefix).isdecimal()
        ]
        fields = {slot: generation_field(prompt.index, slot) for slot in slots}
        return {
            slot: decode_generation(self._attempt.encoded(name)) for slot, name in fields.items()
        }

    async def _settle(self, prompt: Prompt, turns: dict[int, Generation]) -> SettledPrompt:
        verdict = self._kept.verdicts.get(prompt.index)
        settled = await self._answering.settle(prompt, turns, verdict)
        if verdict is None:
            self._count(settled, len(turns))
        return settled

    def _count(self, settled: SettledPrompt, kept_turns: int) -> None:
        """What was kept has been counted when it was settled; what was refused counts as well."""
        if not is_new(settled, kept_turns):
            return
        lease = self._attempt.lease
        count_settled(lease, settled)
        key = f"{lease.batch} index {settled.index}"
        tokens = settled.counts["output_tokens"]
        self._rejection_guard.note(lease.run, JudgedPrompt(key, settled.reason, tokens))

    # --- keeping

    def _keep(self, index: int, slot: int, generation: Generation) -> None:
        count_generation(self._attempt.lease.run, generation)
        self._keep_entry(generation_field(index, slot), generation)

    def _keep_verdict(self, index: int, verdict: Verdict) -> None:
        self._keep_entry(*verdict_entry(index, verdict))

    def _keep_entry(self, field: str, payload: bytes | Generation) -> None:
        self._session.keeping.add(self._attempt, field, payload)


def _fault(faults: list[BaseException], prompts: int) -> BaseException:
    """What ends the attempt: trouble of the machine as it is, anything else in a sentence."""
    if isinstance(faults[0], OSError | MemoryError | HandOverError):
        return faults[0]
    return EngineError(
        f"{len(faults)} of {prompts} prompts failed, the others are kept; the first: {faults[0]}"
    )


def _own(answer: BaseException) -> bool:
    """Whether a prompt failed by itself: an engine that fails on it alone, or a bug that it meets.

    Trouble of the machine, a stop, and what our own code says of the engine are not its own.
    """
    if isinstance(answer, PromptFailureError):
        return True
    return is_panic(answer) or (
        isinstance(answer, Exception)
        and not isinstance(answer, DflashqError | OSError | MemoryError)
    )


def _internal(exc: BaseException) -> bool:
    return not isinstance(exc, PromptFailureError)


def _words(exc: BaseException) -> str:
    if isinstance(exc, PromptFailureError):
        return f"{str(exc).rstrip('.')}."
    return f"failed inside dflashq: {type(exc).__name__}: {str(exc)[:500]}."


def _whole_batch(failed: list[tuple[Prompt, BaseException]], prompts: int) -> EngineError:
    return EngineError(
        f"all {prompts} prompts failed inside dflashq, none could be settled; the first, index "
        f"{failed[0][0].index}: {_words(failed[0][1])}"
    )
