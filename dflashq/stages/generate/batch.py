"""One attempt on one batch: read, answer what is not kept, commit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from dflashq.blobs import commits, runs
from dflashq.blobs.s3 import Blobs
from dflashq.core.errors import EngineError, EngineRefusedError
from dflashq.core.model import ObjectRef, Prompt, RunRecord
from dflashq.core.token_ids import IdArray, id_array
from dflashq.engine.dialects.base import Conversation
from dflashq.ledger import Kept, Ledger
from dflashq.stages.attempt import Attempt
from dflashq.stages.engine_session import EngineSession
from dflashq.stages.generate.accounting import note_rejected
from dflashq.stages.generate.commit import Committer
from dflashq.stages.generate.rejection_guard import RejectionGuard
from dflashq.stages.generate.row_builder import RowBuilder
from dflashq.stages.generate.settled_prompt import SettledPrompt, reject_repeated
from dflashq.stages.generate.settlement import Settlement
from dflashq.stages.recovery_buffer import RecoveryBuffer
from dflashq.stages.run_cache import RunCache

log = logging.getLogger(__name__)

AHEAD_S, AHEAD_CHARS = 1.0, 20_000


class GenerateBatch:
    """The work of one attempt; `run` blocks until the batch is committed or the attempt is over."""

    def __init__(
        self,
        attempt: Attempt,
        session: EngineSession,
        ledger: Ledger,
        blobs: Blobs,
        records: RunCache,
        recovery: RecoveryBuffer,
        rejection_guard: RejectionGuard,
        another_engine: Callable[[], bool],
    ) -> None:
        self._attempt, self._session, self._recovery = attempt, session, recovery
        self._rejection_guard, self._another_engine = rejection_guard, another_engine
        self._ledger, self._blobs, self._records = ledger, blobs, records

    def run(self) -> ObjectRef:
        """Commit the batch, or adopt the commit that is there.

        `another_engine()` says, without blocking, whether another worker could take the batch.
        StoppedError (HandOverError when it should) and LeaseLostError when the attempt is over,
        ConflictError when the commit object is not ours, EngineMismatchError when this engine may
        not answer for the run, any other error when the attempt failed.
        """
        attempt, lease = self._attempt, self._attempt.lease
        record = attempt.retry_until_stopped(
            lambda: self._records.run(lease.run), "reading run.json"
        )
        batch, superseded = attempt.retry_until_stopped(
            lambda: self._records.batch(record, lease.batch), "reading the batch's record"
        )
        prompts = attempt.retry_until_stopped(
            lambda: runs.read_prompts(self._blobs, batch), "reading the prompts"
        )
        committer = Committer(self._ledger, self._blobs, attempt, record.fingerprint, superseded)
        if attempt.retry_until_stopped(
            lambda: commits.committed(self._blobs, lease.run, lease.batch), "looking for a commit"
        ):
            return committer.adopt({prompt.index for prompt in prompts})
        attempt.retry_until_stopped(
            lambda: self._records.check_truth(lease.run, self._session.engine_record()),
            "comparing the engine with the run's",
        )
        attempt.retry_until_stopped(
            lambda: self._rejection_guard.begin(lease.run, record.spec.guard),
            "reading the tolerance",
        )
        if again := attempt.retry_until_stopped(
            lambda: self._recovery.keep_again(self._ledger, lease), "keeping salvaged work again"
        ):
            log.info("kept again: run=%s batch=%s entries=%d", lease.run, lease.batch, again)
        kept = attempt.retry_until_stopped(lambda: self._ledger.kept(lease), "reading kept work")
        attempt.entries.update(kept.entries)
        settled = self._settle(record, prompts, kept)
        attempt.settled = True
        row_builder = RowBuilder(
            *(self._session.renderer, record.spec, attempt.number),
            {prompt.index: prompt for prompt in prompts},
            attempt.entries,
        )
        return committer.commit(self._final(settled, record), row_builder.line)

    def _final(self, settled: list[SettledPrompt], record: RunRecord) -> list[SettledPrompt]:
        """The verdicts after a look at the whole batch."""
        final = reject_repeated(settled, record.spec.checks)
        for before, after in zip(settled, final, strict=True):
            if before.reason != after.reason:
                note_rejected(self._attempt.lease, after)
        return final

    def _settle(self, record: RunRecord, prompts: list[Prompt], kept: Kept) -> list[SettledPrompt]:
        attempt, session = self._attempt, self._session
        log.info(
            "batch begins: run=%s batch=%s fence=%s attempt=%d prompts=%d kept=%d",
            *(record.name, attempt.lease.batch, attempt.lease.fence, attempt.number),
            *(len(prompts), len(kept.generations)),
        )
        if kept.damaged:
            log.error(
                "kept work cannot be read and is made anew: run=%s batch=%s fields=%s",
                *(record.name, attempt.lease.batch, kept.damaged),
            )
        self._seed_control(record, prompts, kept)
        settlement = Settlement(
            *(attempt, session, self._rejection_guard, record, kept),
            self._openings(record, prompts, kept),
            self._another_engine,
        )
        settled = session.loop.run(self._cancellable(settlement, prompts))
        if settled is None:
            attempt.check()
            raise EngineError("the generations of this attempt were cancelled from outside")
        for engine_id, engine in session.engine_records.items():
            attempt.retry_until_stopped(
                lambda i=engine_id, e=engine: self._records.engine(record.name, i, e),  # type: ignore[misc]
                "recording the engine",
            )
        return settled

    def _openings(self, record: RunRecord, prompts: list[Prompt], kept: Kept) -> dict[int, IdArray]:
        """First turns that are still to be asked, rendered in one go for a second at most.

        One after another they cost a third of what they do each at its time, between answers. Long
        ones wait for theirs: should one of them kill the worker, the attempt must have begun.
        """
        begun = {index for index, _ in kept.generations}.union(kept.verdicts)
        openings: dict[int, IdArray] = {}
        until = time.monotonic() + AHEAD_S
        for prompt in prompts:
            self._attempt.check()
            if time.monotonic() > until:
                break
            if prompt.index in begun or prompt.chars > AHEAD_CHARS:
                continue
            with contextlib.suppress(EngineRefusedError):  # it will be refused when it is asked
                openings[prompt.index] = id_array(
                    self._session.renderer.render(
                        prompt.opening, prompt.tools, thinking=record.spec.thinking
                    )
                )
        return openings

    def _seed_control(self, record: RunRecord, prompts: list[Prompt], kept: Kept) -> None:
        """What was answered elsewhere shows whether this engine answers, should all else fail."""
        known = next((p for p in prompts if (p.index, 0) in kept.generations), None)
        if self._session.control is None and known is not None:
            ids = id_array(kept.generations[known.index, 0].prompt_ids).tolist()
            conversation = Conversation(known.opening, known.tools, record.spec.thinking)
            self._session.control = ids, conversation

    async def _cancellable(
        self, settlement: Settlement, prompts: list[Prompt]
    ) -> list[SettledPrompt] | None:
        """None when the attempt was stopped, after everything has unwound."""
        loop = asyncio.get_running_loop()
        work = loop.create_task(settlement.run(prompts))
        self._attempt.on_stop(lambda: loop.call_soon_threadsafe(work.cancel))
        try:
            return await work
        except asyncio.CancelledError:
            return None
