"""The generate stage: the target model answers the prompts of a batch."""

from __future__ import annotations

from collections.abc import Callable

from dflashq.blobs.s3 import Blobs
from dflashq.core.model import ObjectRef
from dflashq.core.stage_spec import GENERATE
from dflashq.ledger import Ledger
from dflashq.stages.attempt import Attempt
from dflashq.stages.engine_session import EngineSession
from dflashq.stages.generate.batch import GenerateBatch
from dflashq.stages.generate.rejection_guard import RejectionGuard
from dflashq.stages.recovery_buffer import RecoveryBuffer
from dflashq.stages.run_cache import RunCache


class GenerateStage:
    """Generation as the runner sees it: `stages.base.Stage` on an engine session."""

    spec = GENERATE

    def __init__(self, session: EngineSession, ledger: Ledger, blobs: Blobs) -> None:
        self._session, self._ledger, self._blobs = session, ledger, blobs
        self._records, self._recovery = RunCache(blobs), RecoveryBuffer()
        self._rejection_guard = RejectionGuard(ledger, blobs)

    def run(self, attempt: Attempt, another_worker: Callable[[], bool]) -> ObjectRef:
        """Answer what is not kept, and commit. Blocks; the errors are those of `GenerateBatch`."""
        return GenerateBatch(
            attempt=attempt,
            session=self._session,
            ledger=self._ledger,
            blobs=self._blobs,
            records=self._records,
            recovery=self._recovery,
            rejection_guard=self._rejection_guard,
            another_engine=another_worker,
        ).run()

    def enter(self, attempt: Attempt) -> None:
        """An attempt begins its generations."""
        self._session.enter(attempt)

    def leave(self, attempt: Attempt) -> None:
        """An attempt has ended; nothing more of it is kept."""
        self._session.leave(attempt)

    def flush(self, attempt: Attempt, timeout_s: float) -> bool:
        """Block until its finished generations are on disk; False when time ran out first."""
        return self._session.keeping.flush(attempt, timeout_s)

    def hold(self, attempt: Attempt) -> int:
        """Hold its finished generations in memory; returns how many entries."""
        return self._recovery.hold(attempt)

    def recoverable(self) -> list[tuple[str, str]]:
        """(run, batch) of the generations held in memory."""
        return self._recovery.batches()

    def drop_held(self, run: str, batch: str) -> None:
        """Forget the generations of a batch that was committed elsewhere."""
        self._recovery.drop(run, batch)

    @property
    def store_full(self) -> bool:
        """Whether kept work has used its budget in Redis."""
        return self._session.keeping.full

    @property
    def sick(self) -> str:
        """Why the engine counts as broken: it answers with errors only, though restarted."""
        if not self._session.health.withdrawn:
            return ""
        return self._session.sick or "its engine was sick"

    @property
    def idle(self) -> bool:
        """Whether no generation is in flight."""
        return not self._session.gate.in_flight

    def stop_admission(self, reason: str) -> None:
        """Close the gate of the engine for `reason`."""
        self._session.gate.threadsafe_close(reason)

    def resume_admission(self, reason: str) -> None:
        """Open the gate, unless other reasons stand."""
        self._session.gate.threadsafe_open(reason)

    def wait_idle(self, timeout_s: float) -> bool:
        """Block until no generation is in flight; False when time ran out first."""
        return self._session.wait_idle(timeout_s)

    def note_error(self, sentence: str) -> None:
        """Show it in the worker's row."""
        self._session.note_error(sentence)
